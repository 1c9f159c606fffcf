//! Tests of the choice of the context that is ended because others wait.

use super::Gpu;
use crate::ipc::SharedGpu;
use protocol::ids::ContextId;
use sched::{ContextKey, Nanos, Share, TenantId};
use shm::{Counters, GateSide, SchedulerSide, Work, grant_page};
use std::time::Duration;

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1000 * MS;
const LIMIT: Duration = Duration::from_secs(10);

/// Contexts on one GPU.
struct World {
    gpu: Gpu,
    gates: Vec<(ContextKey, GateSide, Counters)>,
    now: Nanos,
}

impl World {
    /// Contexts of these VMs.
    fn new(vms: &[u32]) -> Self {
        let mut gpu = Gpu::new(
            SharedGpu { name: "GPU".into(), ..SharedGpu::default() },
            None,
            Default::default(),
            config::Passage::ByGrant,
        );
        let gate = |(number, vm): (u32, &u32)| {
            let (vm, key, file) = (TenantId(*vm), ContextKey(number.into()), grant_page().unwrap());
            gpu.set_tenant(vm, Share::default(), 0);
            gpu.begin(key, (vm, ContextId(number)), SchedulerSide::open(&file).unwrap(), 0);
            (key, GateSide::open(&file).unwrap(), Counters::default())
        };
        Self { gates: (0..).zip(vms).map(gate).collect(), gpu, now: 0 }
    }

    /// Gives a context a submission, which it dispatches as soon as it may.
    fn submit(&mut self, context: usize) {
        self.gates[context].2.ready = 1;
        self.pass(0);
    }

    /// Completes all submissions of a context that the driver has, after `busy` nanoseconds of GPU time.
    fn complete(&mut self, context: usize, busy: Nanos) {
        let (_, gate, counters) = &mut self.gates[context];
        counters.completed = counters.dispatched;
        gate.tell_work(&Work { begin: self.now - busy, end: self.now, busy, count: 1, copy: false });
        self.pass(0);
    }

    /// Completes submissions of a context that took `busy` nanoseconds each.
    fn train(&mut self, context: usize, busy: Nanos) {
        for _ in 0..20 {
            self.submit(context);
            self.pass(busy);
            self.complete(context, busy);
        }
    }

    /// Passes time in which no submission completes. Returns the contexts that are named as hung, with the times.
    fn pass(&mut self, time: Nanos) -> Vec<(Nanos, u32)> {
        let (end, mut named) = (self.now + time, Vec::new());
        loop {
            for (key, gate, counters) in &mut self.gates {
                let granted = gate.granted().wrapping_sub(counters.dispatched);
                let granted = if granted > u32::MAX / 2 { 0 } else { granted };
                let more = if gate.is_leased() { counters.ready } else { granted.min(counters.ready) };
                counters.dispatched = counters.dispatched.wrapping_add(more);
                counters.ready -= more;
                gate.tell(*counters);
                self.gpu.look(*key, self.now, None);
            }
            self.gpu.decide(self.now, None);
            let hung = self.gpu.hung(self.now, |_| LIMIT);
            named.extend(hung.map(|(_, ctx_id)| (self.now / SECOND, ctx_id.0)));
            if self.now >= end {
                return named;
            }
            self.now = (self.now + 50 * MS).min(end);
        }
    }
}

#[test]
fn who_began_first_is_named_once_a_second_and_who_waited_has_its_whole_time_then() {
    let mut world = World::new(&[1, 2]);
    world.submit(0);
    world.pass(2 * SECOND);
    world.submit(1);
    // Neither worker says which submission runs.
    assert_eq!(world.pass(12 * SECOND), [(11, 0), (12, 0), (13, 0)]);
    world.gpu.end(ContextKey(0), world.now, None);
    world.gates.remove(0);
    assert_eq!(world.pass(30 * SECOND), [], "no context waits for it");
}

/// The two contexts are of different VMs, and equally far beyond their usual time.
#[test]
fn of_equal_contexts_none_is_named() {
    for usual in [None, Some(2 * MS), Some(500 * MS)] {
        for is_silent in [false, true] {
            let mut world = World::new(&[1, 2]);
            usual.into_iter().for_each(|usual| (0..2).for_each(|context| world.train(context, usual)));
            (0..2).for_each(|context| world.submit(context));
            let begun = world.now;
            for tenth in 1..290 {
                assert_eq!(world.pass(100 * MS), [], "{usual:?}, after {tenth} tenths of a second");
                let ran = Some(Duration::from_nanos(world.now - begun)).filter(|_| !is_silent);
                world.gates.iter().for_each(|(_, gate, _)| gate.tell_running(ran));
            }
        }
    }
}

#[test]
fn equal_contexts_of_one_vm_do_not_wait_for_each_other_and_another_vm_does() {
    let mut world = World::new(&[1, 1, 2]);
    (0..2).for_each(|context| world.submit(context));
    assert_eq!(world.pass(15 * SECOND), []);
    world.submit(2);
    assert!(!world.pass(SECOND).is_empty());
}

#[test]
fn who_hangs_beside_an_innocent_is_named_whoever_began_first() {
    for hog in [0, 1] {
        let mut world = World::new(&[1, 2]);
        world.train(1 - hog as usize, 2 * MS);
        (0..2).for_each(|context| world.submit(context));
        let named = world.pass(12 * SECOND);
        assert!(!named.is_empty() && named.iter().all(|(_, ctx_id)| *ctx_id == hog), "{named:?}");
    }
}

/// The worker of one context says that its submission runs. The worker of the other context, whose submission the GPU has not begun, says nothing.
#[test]
fn who_hangs_after_short_submissions_is_known_by_what_its_worker_says() {
    let mut world = World::new(&[1, 2]);
    (0..2).for_each(|context| world.train(context, 2 * MS));
    (0..2).for_each(|context| world.submit(context));
    let (begun, mut named) = (world.now, Vec::new());
    for _ in 0..120 {
        named.extend(world.pass(100 * MS));
        world.gates[1].1.tell_running(Some(Duration::from_nanos(world.now - begun)));
    }
    assert!(!named.is_empty() && named.iter().all(|(_, ctx_id)| *ctx_id == 1), "{named:?}");
}
