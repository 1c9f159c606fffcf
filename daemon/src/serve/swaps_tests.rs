//! Tests of contexts that are swapped out and in, with workers that the tests play.

use super::handover::{Asker, GpuMoves, HAND_OVERS_MAX, Purpose, Stage};
use super::restarts_tests::{CONTEXT, NEW, OLD, Rig, blob, rig, rig_with, signalled, submitted, taken_over};
use crate::ipc::{HandOver, ToDevice, ToWorker, Unmovable};
use config::{AtFault, Heap, Wanted};
use outside::HostMemory;
use protocol::ids::ContextId;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The worker with a driver that follows one without.
const THIRD: u32 = 2;

/// Makes a file that says this of the host's memory.
fn account_of_memory(text: &str) -> File {
    let mut file = File::from(shm::create("meminfo", 4096).unwrap());
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Returns the memory of a host whose /proc/meminfo has this text.
pub(super) fn host_memory(text: &str) -> HostMemory {
    HostMemory::in_file(account_of_memory(text))
}

impl Rig {
    fn swaps_out(&mut self, asker: Asker) {
        self.server.hand_over(CONTEXT, None, (asker, Purpose::SwapOut));
        self.turn();
    }

    /// Returns whether the setup that a worker was given has a driver.
    fn has_driver(&self, worker: u32) -> bool {
        match self.hear(worker).first() {
            Some(ToWorker::Setup(setup)) => setup.swapped_out.is_none(),
            other => panic!("{other:?}"),
        }
    }

    /// One worker writes everything and another reads it.
    fn hands_over(&mut self, old: u32, new: u32) {
        let writes = self.hear_one(old, &ToWorker::HandOver { copies: true, goes_on: false });
        writes.send(&HandOver::End, None).unwrap();
        self.turn();
        self.hear_one(new, &ToWorker::TakeOver);
        self.say(old, &ToDevice::HandedOver);
        self.say(new, &taken_over());
        assert_eq!((self.stage(), self.killed.last()), (None, Some(&old)));
    }

    /// The context is with a worker without a driver.
    fn is_swapped_out(&mut self) {
        self.swaps_out(Asker::Operator);
        assert!(!self.has_driver(NEW));
        self.say(NEW, &ToDevice::Ready);
        // There is no prelude, because nothing is compiled.
        assert!(matches!(self.hear(NEW)[..], [ToWorker::AttachResource { .. }]));
        self.hands_over(OLD, NEW);
        assert_eq!(self.hear(NEW), [ToWorker::GoOn]);
        assert_eq!(self.server.unmovable(CONTEXT), Some(Unmovable::SwappedOut));
    }

    /// The successor of the worker without a driver has one, and has taken the context over.
    fn is_swapped_in(&mut self) {
        assert!(self.has_driver(THIRD));
        self.say(THIRD, &ToDevice::Ready);
        self.hear(THIRD);
        self.hands_over(NEW, THIRD);
        assert!(self.is_running() && self.server.unmovable(CONTEXT).is_none());
    }
}

#[test]
fn a_ring_with_a_command_has_its_context_swapped_in() {
    let mut rig = rig();
    rig.is_swapped_out();
    rig.say(NEW, &ToDevice::Wakes);
    assert_eq!(rig.stage(), Some(Stage::Starts));
    rig.say(NEW, &ToDevice::Wakes);
    rig.is_swapped_in();
    assert_eq!(rig.hear(THIRD), [ToWorker::GoOn]);
    assert_eq!(rig.counts(), (2, 0));
    // A worker with a driver need not say that its context wakes.
    rig.say(THIRD, &ToDevice::Wakes);
    assert!(!rig.is_running());
}

#[test]
fn what_comes_waits_for_a_driver_in_its_order_and_resources_do_not() {
    let mut rig = rig();
    rig.is_swapped_out();
    rig.command(&blob(6), None);
    rig.turn();
    assert!(matches!(rig.hear(NEW)[..], [ToWorker::AttachResource { .. }]));
    assert_eq!(rig.stage(), None, "it sleeps on");
    rig.submit(1, Some(7));
    rig.server.swap_in_awaited();
    rig.command(&blob(8), None);
    rig.submit(2, Some(8));
    rig.turn();
    assert_eq!(rig.hear(NEW), [], "it could not execute that");
    let (setup, shown) = {
        let mut heard = rig.hear(THIRD);
        let shown = heard.split_off(1);
        (heard, shown)
    };
    assert!(matches!(&setup[..], [ToWorker::Setup(setup)] if setup.swapped_out.is_none()));
    assert!(matches!(shown[..], [ToWorker::AttachResource { .. }, ToWorker::AttachResource { .. }]));
    rig.say(THIRD, &ToDevice::Ready);
    rig.hands_over(NEW, THIRD);
    let messages = rig.hear(THIRD);
    assert_eq!(submitted(&messages), [1, 2]);
    assert!(
        matches!(
            messages[..],
            [
                ToWorker::GoOn,
                ToWorker::Submit { .. },
                ToWorker::AttachResource { .. },
                ToWorker::Submit { .. }
            ]
        ),
        "{messages:?}"
    );
    rig.say(THIRD, &signalled(7));
    rig.say(THIRD, &signalled(8));
    assert_eq!(rig.open(), 0);
}

#[test]
fn a_program_that_goes_on_is_not_swapped_out() {
    let mut rig = rig();
    rig.swaps_out(Asker::Itself);
    rig.say(NEW, &ToDevice::Ready);
    rig.hear_one(OLD, &ToWorker::HandOver { copies: true, goes_on: false });
    rig.submit(1, None);
    rig.turn();
    let messages = rig.hear(OLD);
    assert!(matches!(messages[..], [ToWorker::GoOn, ToWorker::Submit { .. }]), "{messages:?}");
    assert_eq!((rig.counts(), &rig.killed[..], rig.stage()), ((0, 1), &[NEW][..], None));
    assert!(rig.is_running());
}

#[test]
fn a_context_whose_contents_do_not_fit_in_the_hosts_memory_stays() {
    let mut rig = rig_with(|options| options.host_memory = host_memory("MemAvailable: 1024 kB\n"));
    let bytes = 4096;
    let wanted = Wanted::Credit { heap: Heap::Host, least: bytes, bytes };
    rig.say(OLD, &ToDevice::MemoryWanted { request: 1, wanted });
    assert!(matches!(rig.hear(OLD)[..], [ToWorker::MemoryGranted { .. }]));
    rig.swaps_out(Asker::Operator);
    assert_eq!((rig.counts(), rig.stage()), ((0, 1), None));
    assert!(rig.is_running());
    let returned = ToDevice::CreditReturned { heap: Heap::Host, bytes };
    rig.say(OLD, &returned);
    rig.is_swapped_out();
}

#[test]
fn an_idle_context_for_which_there_is_no_room_is_swapped_out_later() {
    let after = Duration::from_millis(100);
    let account = |kib: u32| format!("MemAvailable: {kib:9} kB\n");
    let file = account_of_memory(&account(1024));
    let memory = file.try_clone().unwrap();
    let mut rig = rig_with(|options| {
        options.vm.swap_after = Some(after);
        options.host_memory = HostMemory::in_file(memory);
    });
    let wanted = Wanted::Credit { heap: Heap::Host, least: 4096, bytes: 4096 };
    rig.say(OLD, &ToDevice::MemoryWanted { request: 1, wanted });
    let begin = rig.now;
    (0..=2).for_each(|looks| rig.turn_at(begin + looks * after));
    assert_eq!((rig.counts(), rig.stage()), ((0, 1), None));
    file.write_all_at(account(1 << 20).as_bytes(), 0).unwrap();
    rig.turn_at(begin + 3 * after);
    assert_eq!((rig.counts(), rig.stage()), ((0, 1), None), "not at once");
    rig.turn_at(Instant::now() + Duration::from_secs(3));
    assert_eq!(rig.stage(), Some(Stage::Starts));
}

#[test]
fn an_idle_context_waits_for_others_of_its_vm_without_a_pause() {
    let after = Duration::from_millis(100);
    let mut rig = rig_with(|options| options.vm.swap_after = Some(after));
    let others = (90..90 + HAND_OVERS_MAX as u32).map(ContextId);
    for other in others.clone() {
        let wanted = (Asker::Itself, Purpose::SwapOut);
        rig.server.world.handovers.begins(other, wanted, GpuMoves::default(), Instant::now());
    }
    let begin = rig.now;
    (0..=3).for_each(|looks| rig.turn_at(begin + looks * after));
    assert_eq!((rig.counts(), rig.stage()), ((0, 0), None));
    others.for_each(|other| drop(rig.server.world.handovers.fails(other)));
    rig.turn_at(begin + 4 * after);
    assert_eq!(rig.stage(), Some(Stage::Starts));
}

#[test]
fn what_an_operator_asks_for_meanwhile_changes_no_pause() {
    let after = Duration::from_millis(100);
    let mut rig = rig_with(|options| {
        options.vm.swap_after = Some(after);
        options.host_memory = host_memory("MemAvailable: 1024 kB\n");
    });
    let wanted = Wanted::Credit { heap: Heap::Host, least: 4096, bytes: 4096 };
    rig.say(OLD, &ToDevice::MemoryWanted { request: 1, wanted });
    let begin = rig.now;
    (0..=2).for_each(|looks| rig.turn_at(begin + looks * after));
    assert_eq!(rig.counts(), (0, 1));
    let is_left_alone = |rig: &Rig, after: u64| {
        rig.server.world.room.is_left_alone(CONTEXT, Instant::now() + Duration::from_millis(after))
    };
    assert!(is_left_alone(&rig, 500));
    for _ in 0..3 {
        rig.server.world.room.stays(CONTEXT, Instant::now());
    }
    assert!(is_left_alone(&rig, 7_500) && !is_left_alone(&rig, 8_500));
    for fails_for_now in [false, true] {
        if fails_for_now {
            for other in (90..90 + HAND_OVERS_MAX as u32).map(ContextId) {
                let wanted = (Asker::Itself, Purpose::SwapOut);
                rig.server.world.handovers.begins(other, wanted, GpuMoves::default(), Instant::now());
            }
        }
        let failed = rig.counts().1;
        rig.server.hand_over(CONTEXT, None, (Asker::Operator, Purpose::SwapOut));
        rig.server.hand_over(CONTEXT, None, (Asker::Operator, Purpose::Restart));
        assert_eq!(rig.counts().1 - failed, if fails_for_now { 2 } else { 1 });
        assert!(is_left_alone(&rig, 7_500) && !is_left_alone(&rig, 8_500));
    }
}

/// The worker that is heard first when contents cannot be copied.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Successor,
    Worker,
    /// The device process hears that the worker goes on before it hears that there is something to read.
    WorkerAheadOfWhatItWrites,
}

#[test]
fn an_idle_context_whose_contents_cannot_be_copied_is_tried_again_whichever_worker_says_so_first() {
    let after = Duration::from_millis(100);
    let lost =
        ToDevice::Lost { at_fault: Some(AtFault::Host), reason: "the host has no memory to spare".into() };
    let stays = ToDevice::Stays { reason: "the other worker is gone".into(), for_now: true };
    for order in [Order::Successor, Order::Worker, Order::WorkerAheadOfWhatItWrites] {
        let mut rig = rig_with(|options| options.vm.swap_after = Some(after));
        let begin = rig.now;
        (0..=3).for_each(|looks| rig.turn_at(begin + looks * after));
        rig.say(NEW, &ToDevice::Ready);
        let writes = rig.hear_one(OLD, &ToWorker::HandOver { copies: true, goes_on: false });
        if order == Order::WorkerAheadOfWhatItWrites {
            rig.workers[&OLD].send(&stays, None).unwrap();
            writes.send(&HandOver::End, None).unwrap();
            rig.turn();
        } else {
            writes.send(&HandOver::End, None).unwrap();
            rig.turn();
            assert!(matches!(rig.stage(), Some(Stage::Moves { .. })));
            if order == Order::Successor {
                rig.say(NEW, &lost);
            }
            rig.say(OLD, &stays);
        }
        assert_eq!((rig.counts(), rig.stage()), ((0, 1), None));
        assert!(rig.is_running());
        rig.turn_at(Instant::now() + Duration::from_secs(3));
        assert_eq!(rig.stage(), Some(Stage::Starts));
    }
}

#[test]
fn a_context_that_cannot_be_swapped_in_is_lost_and_says_why() {
    let mut rig = rig();
    rig.is_swapped_out();
    rig.submit(1, Some(7));
    rig.turn();
    rig.say(THIRD, &ToDevice::Lost { at_fault: Some(AtFault::Driver), reason: "no driver".into() });
    assert!(!rig.is_running());
    assert_eq!(rig.open(), 0, "its fence is answered");
}

#[test]
fn one_that_cannot_rest_now_keeps_what_has_come_for_a_driver() {
    let mut rig = rig();
    rig.is_swapped_out();
    rig.submit(1, None);
    rig.turn();
    rig.say(THIRD, &ToDevice::Ready);
    rig.hear_one(NEW, &ToWorker::HandOver { copies: true, goes_on: false });
    rig.say(NEW, &ToDevice::Stays { reason: "busy".into(), for_now: true });
    assert_eq!((rig.stage(), rig.hear(NEW)), (Some(Stage::Waits), vec![]));
    rig.turn_at(Instant::now() + Duration::from_millis(50));
    rig.hear(THIRD);
    rig.hands_over(NEW, THIRD);
    assert_eq!(submitted(&rig.hear(THIRD)), [1]);
}

#[test]
fn a_context_is_swapped_out_once_it_was_idle_for_long() {
    let after = Duration::from_millis(100);
    let mut rig = rig_with(|options| options.vm.swap_after = Some(after));
    let begin = rig.now;
    rig.turn_at(begin);
    rig.submit(1, None);
    rig.turn_at(begin + after);
    assert_eq!(rig.stage(), None, "it has done something");
    rig.turn_at(begin + 2 * after);
    rig.turn_at(begin + 3 * after);
    assert_eq!(rig.stage(), Some(Stage::Starts));
}
