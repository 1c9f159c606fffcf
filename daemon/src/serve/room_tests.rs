//! Memory of the GPUs that the broker lets a VM have and takes away, with workers and a broker that are played.

use super::handover::Stage;
use super::restarts_tests::{CONTEXT, NEW, OLD, Rig, heard, rig_with_spare, submitted};
use crate::ipc::{Channel, FromBroker, HandOver, RoomState, ToBroker, ToDevice, ToWorker, Unmovable};
use config::{Heap, PerHeap, Wanted};

/// The worker with a driver that follows one without.
const THIRD: u32 = 2;

impl Rig {
    /// The broker says something. Returns the state that it hears last.
    fn told(&mut self, broker: &Channel, message: &FromBroker) -> RoomState {
        broker.send(message, None).unwrap();
        self.turn();
        state(broker)
    }

    fn asks(&mut self, worker: u32, request: u32, least: u64, bytes: u64) {
        let wanted = Wanted::Credit { heap: Heap::Device, least, bytes };
        self.say(worker, &ToDevice::MemoryWanted { request, wanted });
    }

    /// One worker writes everything and another takes it over, with its credit. Nothing is left of the first.
    fn passes_on(&mut self, workers: (u32, u32), credit: u64, meanwhile: impl FnOnce(&mut Self)) {
        let number = self.begins_to_pass_on(workers, credit, meanwhile);
        self.server.nothing_is_left(number);
        self.turn();
    }

    /// Does the same, but the first has not ended. Returns its number.
    fn begins_to_pass_on(
        &mut self,
        (old, new): (u32, u32),
        credit: u64,
        meanwhile: impl FnOnce(&mut Self),
    ) -> u64 {
        // The hand-over before.
        self.hear(old);
        self.say(new, &ToDevice::Ready);
        self.hear(new);
        let writes = self.hear_one(old, &ToWorker::HandOver { copies: true });
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

/// The number of a request of the context; that of its coming back is the largest.
fn number(request: u32) -> u64 {
    u64::from(CONTEXT.0) << 32 | u64::from(request)
}

fn may(most: u64, forced: bool) -> FromBroker {
    FromBroker::Room { most, forced }
}

#[test]
fn a_request_waits_for_the_broker_and_gets_no_more_than_there_is() {
    let (mut rig, broker) = rig_with_spare();
    assert_eq!(rig.told(&broker, &may(0, false)), RoomState::default());
    rig.asks(OLD, 1, 100, 200);
    let wants = RoomState { wanted: 100, least: 100, waiter: number(1), ..RoomState::default() };
    assert_eq!((rig.hear(OLD), state(&broker)), (vec![ToWorker::MemoryWaits { request: 1 }], wants));
    let has = RoomState { most: 150, held: 150, wanted: 150, ..RoomState::default() };
    assert_eq!(rig.told(&broker, &may(150, false)), has);
    assert_eq!(rig.hear(OLD), [ToWorker::MemoryGranted { request: 1, memory: None, bytes: 150 }]);
    rig.asks(OLD, 2, 50, 50);
    assert_eq!(state(&broker), RoomState { wanted: 200, least: 200, waiter: number(2), ..has });
    // Another wants as much, and is heard of when the first is refused.
    rig.asks(OLD, 4, 50, 50);
    let next = RoomState { wanted: 200, least: 200, waiter: number(4), ..has };
    assert_eq!(rig.told(&broker, &FromBroker::NoRoom { waiter: number(2) }), next);
    let (waits, refused) =
        (|request| ToWorker::MemoryWaits { request }, ToWorker::MemoryRefused { request: 2 });
    assert_eq!(rig.hear(OLD), [waits(2), waits(4), refused]);
    // A refusal is of one that waits, which it may not do any more.
    assert_eq!(rig.told(&broker, &FromBroker::NoRoom { waiter: number(2) }), next);
    assert_eq!(rig.hear(OLD), []);
    rig.say(OLD, &ToDevice::MemoryWantedNoMore { request: 4 });
    assert_eq!((rig.hear(OLD), state(&broker)), (vec![ToWorker::MemoryRefused { request: 4 }], has));
    // A quota is no matter of the broker.
    rig.asks(OLD, 3, u64::MAX, u64::MAX);
    assert_eq!(rig.hear(OLD), [ToWorker::MemoryRefused { request: 3 }]);
    assert!(heard(&broker).is_empty());
}

#[test]
fn a_busy_context_is_swapped_out_if_it_has_to_be_and_comes_back_when_it_may() {
    for comes_back in [true, false] {
        let (mut rig, broker) = rig_with_spare();
        rig.told(&broker, &may(150, false));
        rig.asks(OLD, 1, 100, 150);
        rig.hear(OLD);
        rig.told(&broker, &may(100, false));
        assert_eq!(rig.stage(), None, "it is not idle");
        rig.told(&broker, &may(100, true));
        assert_eq!(rig.stage(), Some(Stage::Starts));
        // What its program does meanwhile waits.
        rig.passes_on((OLD, NEW), 150, |rig| rig.submit(1, Some(7)));
        assert_eq!(rig.server.unmovable(CONTEXT), Some(Unmovable::Waits));
        let waiter = number(u32::MAX);
        let wants = RoomState { most: 100, held: 0, wanted: 150, least: 150, idle: 0, waiter };
        assert_eq!(state(&broker), wants);
        if !comes_back {
            assert_eq!(rig.told(&broker, &FromBroker::NoRoom { waiter }).wanted, 0);
            assert_eq!((rig.is_running(), rig.open()), (false, 0));
            continue;
        }
        assert_eq!(rig.told(&broker, &may(150, false)).held, 150);
        rig.passes_on((NEW, THIRD), 150, |_| {});
        assert_eq!(submitted(&rig.hear(THIRD)), [1]);
        assert_eq!((rig.server.unmovable(CONTEXT), rig.is_running()), (None, true));
    }
}

#[test]
fn memory_counts_until_the_process_with_the_driver_has_ended_though_its_context_has() {
    for comes_back in [false, true] {
        let (mut rig, broker) = rig_with_spare();
        rig.told(&broker, &may(150, false));
        rig.asks(OLD, 1, 100, 150);
        rig.hear(OLD);
        rig.told(&broker, &may(0, true));
        let mut driver = rig.begins_to_pass_on((OLD, NEW), 150, |rig| rig.submit(1, Some(7)));
        if comes_back {
            rig.server.nothing_is_left(driver);
            rig.told(&broker, &may(150, true));
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
