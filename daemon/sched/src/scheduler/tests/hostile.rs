//! Tests of the harm that workers which a guest has taken over can do to other VMs.

use super::super::*;
use super::simulation::*;
use crate::Class;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};

/// Runs two honest guests beside the guests of an adversary, and returns the world.
fn beside(setting: Setting, adversary: &[Guest], time: Nanos) -> World {
    let honest = [Guest::new(0, 100, 2 * MILLISECOND), Guest::new(1, 100, 10 * MILLISECOND)];
    simulate(setting, honest.into_iter().chain(adversary.iter().cloned()).collect(), time)
}

fn assert_no_harm(world: &World, what: &str) {
    let parts = [0, 1].map(|index| world.part(index));
    // Each gets a third, less the cost of switches.
    assert!(parts.iter().all(|part| *part >= 1.0 / 3.0 - 0.02), "{what}: {parts:.4?}, {}", world.figures());
}

#[test]
fn a_flood_of_empty_submissions_is_paid_for() {
    for setting in SETTINGS {
        let flood = Guest { outstanding: 64, ..Guest::new(2, 100, MICROSECOND) };
        assert_no_harm(&beside(setting, &[flood], 2 * SECOND), "flood");
    }
}

#[test]
fn lies_about_completed_work_do_not_pay() {
    for setting in SETTINGS {
        for honesty in [Honesty::NoSpans, Honesty::FutureSpans, Honesty::Overclaims] {
            for length in [MILLISECOND, 5 * MILLISECOND, 25 * MILLISECOND] {
                let liar = Guest { honesty, ..Guest::new(2, 100, length) };
                assert_no_harm(&beside(setting, &[liar], 10 * SECOND), &format!("{honesty:?} {length}"));
            }
        }
    }
}

#[test]
fn lies_about_long_work_do_not_pay() {
    for setting in SETTINGS {
        for length in [2 * MILLISECOND, 25 * MILLISECOND] {
            let liar = Guest { honesty: Honesty::ShortSpans, ..Guest::new(2, 100, length) };
            assert_no_harm(&beside(setting, &[liar], 10 * SECOND), &format!("short spans {length}"));
        }
    }
}

#[test]
fn others_go_on_beside_submissions_that_never_end() {
    for endless in [1, 2, 3, 150] {
        let mut world = beside(SLICED, &[], 10 * MILLISECOND);
        (0..endless).for_each(|_| world.join(Guest::new(2, 100, 1_000_000 * SECOND)));
        world.run(10 * SECOND);
        let parts = [0, 1].map(|index| world.part(index));
        // At most two of them are in the driver, and the GPU gives each the same time as the others.
        let least = if endless == 1 { 0.45 } else { 0.31 };
        assert!((parts[0] - parts[1]).abs() / 2.0 <= 0.02, "{parts:.4?}");
        assert!(parts[0] >= least / 2.0, "{endless}: {parts:.4?}, {}", world.figures());
    }
}

/// Returns the part of the GPU that an honest VM has beside a VM with so many contexts of this kind, and the longest wait for one of its 2 ms
/// submissions, in milliseconds.
fn beside_many(setting: Setting, liar: &Guest, contexts: usize, time: Nanos) -> (f64, f64) {
    let liars = vec![Guest { tenant: 1, ..liar.clone() }; contexts];
    let guests = [Guest::new(0, 100, 2 * MILLISECOND)].into_iter().chain(liars).collect();
    let world = simulate(setting, guests, time);
    (world.part(0), world.percentile(0, 1.0))
}

/// All contexts of a VM together have no more than the VM's part, however many they are, and whatever times they claim.
#[test]
fn contexts_that_lie_about_their_times_take_nothing_from_another_vm() {
    let kinds = [
        Honesty::Honest,
        Honesty::NoSpans,
        Honesty::ShortSpans,
        Honesty::EarlySpans,
        Honesty::LateSpans,
        Honesty::IdleSpans,
        Honesty::OldSpans,
        Honesty::FutureSpans,
        Honesty::Copies,
    ];
    for (setting, contexts) in [(SERIAL, 150), (SLICED, 150), (SLICED, 1)] {
        for honesty in kinds {
            for length in [100 * MICROSECOND, 2 * MILLISECOND, 25 * MILLISECOND] {
                let liar = Guest { honesty, ..Guest::new(1, 100, length) };
                let time = (1000 * length).clamp(SECOND, 5 * SECOND / 2);
                let (part, longest) = beside_many(setting, &liar, contexts, time);
                let what =
                    format!("{setting:?}, {contexts}, {honesty:?}, {length}: {part:.3}, {longest:.0} ms");
                assert!(part >= 0.45, "{what}");
                assert!(longest <= 100.0, "{what}");
            }
        }
    }
}

/// The contexts hold their place for longer than their work takes.
#[test]
fn contexts_that_hold_their_place_without_work_take_nothing_from_another_vm() {
    for setting in SETTINGS {
        for time in [Some(MILLISECOND), Some(45 * MILLISECOND), Some(200 * MILLISECOND), None] {
            let liar = Guest { honesty: Honesty::Holds(time), ..Guest::new(1, 100, MICROSECOND) };
            let (part, longest) = beside_many(setting, &liar, 150, 5 * SECOND);
            assert!(part >= 0.45 && longest <= 100.0, "{setting:?}, {time:?}: {part:.3}, {longest:.0} ms");
        }
    }
}

/// The VM that came first has two contexts in the driver, however many have work.
#[test]
fn a_vm_that_comes_finds_two_contexts_of_another_in_the_driver() {
    let endless = vec![Guest::new(1, 100, 1000 * SECOND); 150];
    let mut world = simulate(SLICED, endless, 10 * SECOND);
    world.join(Guest::new(0, 100, 2 * MILLISECOND));
    let before = world.now;
    world.run(10 * SECOND);
    let part = world.guests[150].busy as f64 / (world.now - before) as f64;
    assert!(part >= 0.31, "{part:.3}");
}

/// The contexts submit little work at first, so that little is expected of them, and then much. Two contexts are in the driver before this is known,
/// and share the GPU with the other VM, which makes up for that afterwards; if they never end, it cannot.
#[test]
fn contexts_that_take_longer_than_they_used_to_have_their_vms_part_together() {
    for (length, least) in [(100 * MILLISECOND, 0.45), (SECOND, 0.45), (1000 * SECOND, 0.31)] {
        for before in [1, 20] {
            let later = Some((before, length));
            let liar = Guest { later, outstanding: 1, ..Guest::new(1, 100, 20 * MICROSECOND) };
            let (part, longest) = beside_many(SLICED, &liar, 150, 20 * SECOND);
            assert!(part >= least && longest <= 150.0, "{length}, {before}: {part:.3}, {longest:.0} ms");
        }
    }
}

/// A scheduler that gets any calls, in any order.
struct Chaos {
    scheduler: Scheduler,
    random: u64,
    now: Nanos,
    epoch: Nanos,
}

impl Chaos {
    fn below(&mut self, limit: u64) -> u64 {
        xorshift(&mut self.random) % limit
    }

    /// Returns a number that is small, or near the ends of its type.
    fn any(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(8),
            1 => u64::MAX - self.below(8),
            2 => self.now.wrapping_add(self.below(100 * MILLISECOND)).wrapping_sub(50 * MILLISECOND),
            _ => xorshift(&mut self.random),
        }
    }

    fn step(&mut self) {
        let key = ContextKey(self.below(12));
        let tenant = TenantId((key.0 / 3) as u32);
        self.now = self.now.saturating_add(self.below(2 * MILLISECOND));
        match self.below(40) {
            0 => _ = self.scheduler.end(key, self.now),
            1 => _ = self.scheduler.remove_tenant(tenant),
            2 | 3 => {
                let class = [Class::Normal, Class::Latency, Class::Background][self.below(3) as usize];
                let ceiling =
                    [None, Some(0.3), Some(0.0), Some(f64::NAN), Some(-1.0)][self.below(5) as usize];
                let share = Share { weight: self.any() as u32, class, ceiling };
                self.scheduler.set_tenant(tenant, share, self.now);
            }
            4..10 => self.scheduler.begin(key, tenant, self.now),
            _ => self.see(key),
        }
    }

    fn see(&mut self, key: ContextKey) {
        let base = self
            .scheduler
            .contexts
            .get(&key)
            .map_or((0, 0, 0), |context| (context.granted, context.completed, context.skew));
        let (granted, completed, skew) = base;
        let honest = self.below(2) == 0;
        let mut total = |of: u32| {
            let near = of.wrapping_add(skew).wrapping_add(self.below(3) as u32);
            if honest { near } else { self.any() as u32 }
        };
        let (dispatched, completed) = (total(granted), total(completed));
        let ready = if honest { self.below(5) } else { self.any() } as u32;
        let spans: Vec<_> = (0..self.below(4))
            .map(|_| Span {
                begin: self.any(),
                end: self.any(),
                busy: self.any(),
                count: self.any() as u32,
                copy: self.below(3) == 0,
            })
            .collect();
        self.scheduler.see(key, Seen { ready, dispatched, completed }, &spans, self.now);
    }

    fn check(&mut self) {
        let placed = |chaos: &Self| {
            chaos.scheduler.units.0.iter().filter(|unit| unit.kind == crate::units::Kind::Place).count()
        };
        let before = placed(self);
        let orders = self.scheduler.decide(self.now);
        let places = self.scheduler.units.places(&self.scheduler.tuning, self.now);
        assert!(orders.len() <= 5, "{orders:?}");
        assert!(placed(self) == before || places.taken <= crate::units::PLACES, "{places:?}");
        assert!(self.scheduler.units.0.len() <= 4 * 12 + 3);
        if let Some(at) = self.scheduler.next_look() {
            assert!(at > self.now);
        }
        let waits = self.scheduler.contexts.values().any(|context| context.held_back() > 0);
        let stuck = waits && self.scheduler.next_look().is_none() && self.scheduler.units.0.is_empty();
        assert!(!stuck, "no tenant would ever be served");
        for key in 0..12 {
            let usage = self.scheduler.usage(ContextKey(key));
            assert!(usage.is_none_or(|usage| usage.waiting <= self.now - self.epoch));
            let _ = self.scheduler.others_wait(ContextKey(key));
            let _ = self.scheduler.tenant_usage(TenantId(key as u32));
        }
    }
}

#[test]
fn whatever_workers_say_the_scheduler_goes_on() {
    for seed in 1..=40_u64 {
        let epoch = [0, SECOND, 1 << 60][seed as usize % 3];
        let scheduler = Scheduler::new(Tuning::default());
        let mut chaos = Chaos { scheduler, random: seed * 0x9e37_79b9, now: epoch, epoch };
        for _ in 0..1500 {
            chaos.step();
            chaos.check();
            // Half of the time, a look comes when it is due, and moves the time on.
            if chaos.below(2) == 0
                && let Some(at) = chaos.scheduler.next_look()
                && at < chaos.now + SECOND
            {
                chaos.now = at;
                chaos.check();
            }
        }
    }
}
