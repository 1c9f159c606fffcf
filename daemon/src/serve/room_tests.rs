//! Tests of the GPU memory that the broker gives a VM and takes away, with workers and a broker that the tests play.

use super::handover::room::Room;
use super::handover::{Asker, Stage};
use super::restarts_tests::{CONTEXT, NEW, OLD, Rig, heard, rig_with_spare, submitted};
use crate::ipc::{
    Channel, FromBroker, HandOver, RoomOrder, RoomState, ToBroker, ToDevice, ToWorker, Unmovable,
};
use config::{Heap, PerHeap, Wanted};
use std::time::{Duration, Instant};

/// The worker with a driver that follows one without.
const THIRD: u32 = 2;
/// The time for which contexts wait, in milliseconds, which is longer than a test takes; and half of that time.
const WAIT_MS: u64 = 600_000;
const HALF: Duration = Duration::from_millis(WAIT_MS / 2);

impl Rig {
    /// The broker says something. Returns the state that it hears last.
    fn told(&mut self, broker: &Channel, message: &FromBroker) -> RoomState {
        broker.send(message, None).unwrap();
        self.turn();
        state(broker)
    }

    fn asks(&mut self, worker: u32, request: u32, least: u64, bytes: u64) {
        self.say(worker, &wants(request, least, bytes));
    }

    /// A restart begins, up to where the old worker is told to hand over.
    fn is_to_rest(&mut self) {
        self.server.restart(CONTEXT, None, Asker::Test);
        self.turn();
        self.say(NEW, &ToDevice::Ready);
        while let Some(Stage::Prepares { .. }) = self.stage() {
            self.say(NEW, &ToDevice::PreludeBuilt { is_at_home: false });
        }
        assert_eq!(self.stage(), Some(Stage::Rests));
    }

    /// Returns whether a worker hears at this time that a request is refused.
    fn is_refused(&mut self, worker: u32, request: u32, now: Instant) -> bool {
        self.server.room_due(now);
        self.hear(worker).contains(&ToWorker::MemoryRefused { request })
    }

    /// One worker writes everything, and another takes the context over with its credit. Nothing is left of the first worker.
    fn passes_on(&mut self, workers: (u32, u32), credit: u64, meanwhile: impl FnOnce(&mut Self)) {
        let number = self.begins_to_pass_on(workers, credit, meanwhile);
        self.server.nothing_is_left(number);
        self.turn();
    }

    /// Does the same, but the first worker has not ended. Returns the number of the first worker.
    fn begins_to_pass_on(
        &mut self,
        (old, new): (u32, u32),
        credit: u64,
        meanwhile: impl FnOnce(&mut Self),
    ) -> u64 {
        // These messages belong to the hand-over before.
        self.hear(old);
        self.say(new, &ToDevice::Ready);
        self.hear(new);
        let writes = self.hear_one(old, &ToWorker::HandOver { copies: true, goes_on: false });
        meanwhile(self);
        writes.send(&HandOver::End, None).unwrap();
        self.turn();
        let number = self.server.world.workers.successor_number(CONTEXT).unwrap();
        self.say(old, &ToDevice::HandedOver);
        let credit = PerHeap { device: credit, host: 0 };
        self.say(new, &ToDevice::TakenOver { pieces: Vec::new(), credit });
        assert_eq!((self.stage(), self.killed.last()), (None, Some(&old)));
        self.turn();
        assert_ne!(self.stage(), Some(Stage::Starts), "the memory is not free yet");
        number
    }
}

/// The state that the broker hears last.
fn state(broker: &Channel) -> RoomState {
    let mut states = heard(broker).into_iter().filter_map(|message| match message {
        ToBroker::Room(state) => Some(state),
        _ => None,
    });
    states.next_back().expect("the broker hears something")
}

fn wants(request: u32, least: u64, bytes: u64) -> ToDevice {
    let wanted = Wanted::Credit { heap: Heap::Device, least, bytes };
    ToDevice::MemoryWanted { request, wanted }
}

fn waits(request: u32) -> ToWorker {
    ToWorker::MemoryWaits { request }
}

fn may(number: u64, most: u64, forced: bool) -> FromBroker {
    FromBroker::Room(RoomOrder { number, most, forced, total: 1000, wait_ms: WAIT_MS })
}

/// A context that holds 150 bytes, which is all that its VM may hold.
fn rig_that_holds_150() -> (Rig, Channel) {
    let (mut rig, broker) = rig_with_spare();
    rig.told(&broker, &may(1, 150, false));
    rig.asks(OLD, 1, 100, 150);
    rig.hear(OLD);
    (rig, broker)
}

#[test]
fn a_request_waits_for_the_broker_and_gets_no_more_than_there_is() {
    let (mut rig, broker) = rig_with_spare();
    assert_eq!(rig.told(&broker, &may(1, 0, false)), RoomState { order: 1, ..RoomState::default() });
    rig.asks(OLD, 1, 100, 200);
    let wants = RoomState { order: 1, lacks: 100, ..RoomState::default() };
    assert_eq!((rig.hear(OLD), state(&broker)), (vec![waits(1)], wants));
    let has = RoomState { order: 2, held: 150, ..RoomState::default() };
    assert_eq!(rig.told(&broker, &may(2, 150, false)), has);
    assert_eq!(rig.hear(OLD), [ToWorker::MemoryGranted { request: 1, memory: None, bytes: 150 }]);
    rig.asks(OLD, 2, 50, 50);
    assert_eq!(state(&broker), RoomState { lacks: 50, holds: 150, ..has });
    // The broker hears of the first of two requests until the worker takes it back.
    rig.asks(OLD, 4, 70, 70);
    rig.say(OLD, &ToDevice::MemoryWantedNoMore { request: 2 });
    assert_eq!(rig.hear(OLD), [waits(2), waits(4), ToWorker::MemoryRefused { request: 2 }]);
    assert_eq!(state(&broker), RoomState { lacks: 70, holds: 150, ..has });
    rig.say(OLD, &ToDevice::MemoryWantedNoMore { request: 4 });
    assert_eq!((rig.hear(OLD), state(&broker)), (vec![ToWorker::MemoryRefused { request: 4 }], has));
    // A quota does not concern the broker, and a request for more than the broker has is refused.
    rig.asks(OLD, 3, u64::MAX, u64::MAX);
    assert_eq!(rig.hear(OLD), [ToWorker::MemoryRefused { request: 3 }]);
    rig.asks(OLD, 5, 851, 851);
    assert_eq!(rig.hear(OLD), [waits(5), ToWorker::MemoryRefused { request: 5 }]);
}

#[test]
fn each_request_is_refused_when_it_has_waited_for_long_enough() {
    let (mut rig, broker) = rig_with_spare();
    rig.told(&broker, &may(1, 0, false));
    rig.asks(OLD, 1, 100, 100);
    rig.server.room_due(Instant::now() + HALF);
    rig.asks(OLD, 2, 100, 100);
    let begin = Instant::now();
    rig.server.room_due(begin + HALF);
    assert_eq!(rig.hear(OLD), [waits(1), waits(2)]);
    rig.server.room_due(begin + 2 * HALF);
    assert_eq!(
        rig.hear(OLD),
        [ToWorker::MemoryRefused { request: 1 }, ToWorker::MemoryRefused { request: 2 }]
    );
    assert_eq!(state(&broker), RoomState { order: 1, ..RoomState::default() });
}

#[test]
fn a_request_that_a_hand_over_interrupts_and_no_other_has_waited_when_it_is_made_anew() {
    let stays = || ToDevice::Stays { reason: "busy".into(), for_now: true };
    let no_more = ToDevice::MemoryWantedNoMore { request: 1 };
    // Within one look at the waits, a request was taken back, was granted meanwhile, or is granted when it is made anew.
    for (is_taken_back, room, said, request) in [
        (true, 0, vec![wants(2, 100, 100)], 2),
        (false, 100, vec![wants(2, 100, 100)], 2),
        (true, 100, vec![wants(2, 100, 100), wants(3, 100, 100)], 3),
    ] {
        let (mut rig, broker) = rig_with_spare();
        rig.told(&broker, &may(1, 0, false));
        rig.asks(OLD, 1, 100, 100);
        let begin = rig.now;
        rig.is_to_rest();
        if is_taken_back {
            rig.say(OLD, &no_more);
        }
        rig.told(&broker, &may(2, room, false));
        rig.now += HALF;
        rig.say_all(OLD, &[vec![stays()], said].concat());
        assert!(!rig.is_refused(OLD, request, begin + HALF));
        assert_eq!(rig.is_refused(OLD, request, begin + 2 * HALF), request == 2 && is_taken_back);
        assert_eq!(rig.is_refused(OLD, request, begin + 3 * HALF), request == 3 || !is_taken_back);
    }
}

#[test]
fn a_request_whose_context_was_swapped_out_has_not_waited_when_it_is_made_anew() {
    let (mut rig, broker) = rig_that_holds_150();
    rig.asks(OLD, 2, 50, 50);
    let begin = rig.now;
    rig.told(&broker, &may(2, 100, true));
    rig.passes_on((OLD, NEW), 150, |rig| {
        rig.say(OLD, &ToDevice::MemoryWantedNoMore { request: 2 });
        rig.submit(1, Some(7));
    });
    rig.told(&broker, &may(3, 150, false));
    rig.passes_on((NEW, THIRD), 150, |_| {});
    rig.now += HALF;
    rig.asks(THIRD, 3, 50, 50);
    assert!(!rig.is_refused(THIRD, 3, begin + 2 * HALF));
    assert!(rig.is_refused(THIRD, 3, begin + 3 * HALF));
}

#[test]
fn a_vm_that_is_to_wait_for_the_broker_holds_nothing_before_it_has_said_how_much() {
    let (mut rig, broker) = rig_with_spare();
    rig.server.world.room = Room::closed();
    rig.turn();
    rig.asks(OLD, 1, 100, 100);
    assert_eq!((rig.hear(OLD), heard(&broker)), (vec![waits(1)], vec![]));
    rig.told(&broker, &may(1, 100, false));
    assert_eq!(rig.hear(OLD), [ToWorker::MemoryGranted { request: 1, memory: None, bytes: 100 }]);
}

#[test]
fn a_context_that_was_to_go_for_others_stays_if_they_do_not_need_it_any_more() {
    let (mut rig, broker) = rig_that_holds_150();
    rig.told(&broker, &may(2, 100, true));
    assert_eq!(rig.stage(), Some(Stage::Starts));
    rig.told(&broker, &may(3, 150, false));
    assert_eq!((rig.stage(), rig.is_running()), (None, true));
    // The context is not left alone for that.
    rig.told(&broker, &may(4, 100, true));
    assert_eq!(rig.stage(), Some(Stage::Starts));
}

#[test]
fn a_busy_context_is_swapped_out_if_it_has_to_be_and_comes_back_when_it_may() {
    for comes_back in [true, false] {
        let (mut rig, broker) = rig_that_holds_150();
        rig.told(&broker, &may(2, 100, false));
        assert_eq!(rig.stage(), None, "it is not idle");
        rig.told(&broker, &may(3, 100, true));
        assert_eq!(rig.stage(), Some(Stage::Starts));
        // The program's submissions wait meanwhile.
        rig.passes_on((OLD, NEW), 150, |rig| rig.submit(1, Some(7)));
        assert_eq!(rig.server.unmovable(CONTEXT), Some(Unmovable::Waits));
        let wants = RoomState { order: 3, lacks: 150, ..RoomState::default() };
        assert_eq!(state(&broker), wants);
        if !comes_back {
            rig.server.room_due(Instant::now() + 2 * HALF);
            assert_eq!(state(&broker).lacks, 0);
            assert_eq!((rig.is_running(), rig.open()), (false, 0));
            continue;
        }
        assert_eq!(rig.told(&broker, &may(4, 150, false)).held, 150);
        rig.passes_on((NEW, THIRD), 150, |_| {});
        assert_eq!(submitted(&rig.hear(THIRD)), [1]);
        assert_eq!((rig.server.unmovable(CONTEXT), rig.is_running()), (None, true));
    }
}

#[test]
fn memory_counts_until_the_process_with_the_driver_has_ended_though_its_context_has() {
    for comes_back in [false, true] {
        let (mut rig, broker) = rig_that_holds_150();
        rig.told(&broker, &may(2, 0, true));
        let mut driver = rig.begins_to_pass_on((OLD, NEW), 150, |rig| rig.submit(1, Some(7)));
        if comes_back {
            rig.server.nothing_is_left(driver);
            rig.told(&broker, &may(3, 150, true));
            assert_eq!(rig.stage(), Some(Stage::Starts));
            driver = rig.server.world.workers.successor_number(CONTEXT).unwrap();
        }
        rig.server.lose(CONTEXT, "a test ends it");
        (0..driver).for_each(|number| rig.server.nothing_is_left(number));
        let held = |rig: &Rig| rig.server.device.present_memory();
        assert_eq!((held(&rig), rig.server.world.room.leaving.len()), (150, 0));
        rig.server.nothing_is_left(driver);
        assert_eq!(held(&rig), 0);
    }
}
