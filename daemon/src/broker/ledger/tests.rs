//! VMs that are played, on a GPU of 100 bytes.

use super::*;

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1000 * MS;
const PATIENCE: Nanos = 120 * SECOND;
const A: usize = 0;
const B: usize = 1;

/// A ledger, and what each VM was told last.
struct World {
    ledger: Ledger,
    told: BTreeMap<usize, Order>,
    now: Nanos,
}

fn world(reserved: [u64; 2]) -> World {
    let mut world = World { ledger: Ledger::default(), told: BTreeMap::new(), now: SECOND };
    for (vm, reserved) in reserved.into_iter().enumerate() {
        assert_eq!(world.ledger.begins(vm, [(0, 100)]), may(0, false));
        world.ledger.reserve(vm, reserved);
    }
    world
}

fn may(most: u64, forced: bool) -> Order {
    Order::May { most, forced }
}

impl World {
    /// A VM that keeps to what it may have says what one of its contexts holds and lacks.
    fn say(&mut self, vm: usize, held: u64, lacks: u64) {
        self.say_with(vm, held, lacks, 0);
    }

    fn say_with(&mut self, vm: usize, held: u64, lacks: u64, idle: u64) {
        let most = match self.told.get(&vm) {
            Some(Order::May { most, .. }) => *most,
            _ => 0,
        };
        let least = if lacks > 0 { held + lacks } else { 0 };
        let state = RoomState { most, held, wanted: held + lacks, least, idle, waiter: 0 };
        self.ledger.hears(vm, state, self.now);
        self.decide();
    }

    /// One context of A holds 60 bytes and does something, and another wants as many.
    fn say_of_two(&mut self) {
        let Order::May { most, .. } = self.told[&A] else { panic!("{:?}", self.told) };
        let state = RoomState { most, held: 60, wanted: 120, least: 60, ..RoomState::default() };
        self.ledger.hears(A, state, self.now);
        self.decide();
    }

    /// The turn of A is over: its context goes, and the other gets its memory unless another VM does.
    fn exchange(&mut self) {
        self.say_of_two();
        if !matches!(self.told[&A], Order::May { forced: true, .. }) {
            self.wait(TURN);
        }
        assert!(matches!(self.told[&A], Order::May { forced: true, .. }), "{:?}", self.told);
        self.say(A, 0, 60);
    }

    fn decide(&mut self) {
        for (vm, order) in self.ledger.decide(PATIENCE, self.now) {
            self.told.insert(vm, order);
        }
    }

    fn wait(&mut self, time: Nanos) {
        self.now += time;
        self.decide();
    }

    /// A has 80 bytes, and B waits for as many.
    fn contended(reserved: [u64; 2]) -> Self {
        let mut world = world(reserved);
        world.say(A, 0, 80);
        world.say(A, 80, 0);
        world.say(B, 0, 80);
        world
    }
}

#[test]
fn where_there_is_memory_for_all_no_vm_gives_any_up() {
    let mut world = world([0, 0]);
    world.say(A, 0, 40);
    assert_eq!(world.told[&A], may(55, false), "and a quarter of what is left");
    world.say(A, 40, 0);
    world.say(B, 0, 45);
    assert_eq!(world.told[&B], may(45, false));
    assert_eq!((world.told[&A], world.ledger.next_look(0)), (may(55, false), None));
    // What A may have and does not is given up before anything is swapped out.
    world.say(B, 45, 10);
    assert_eq!((world.told[&A], world.told[&B]), (may(45, false), may(45, false)));
    world.say(A, 40, 0);
    assert_eq!(world.told[&B], may(55, false));
}

#[test]
fn idle_contexts_go_at_once_and_busy_ones_when_the_turn_is_over() {
    let mut world = World::contended([0, 0]);
    // A has not waited for another VM, so it has had its turn.
    assert_eq!(world.told[&A], may(20, true));
    assert_eq!(world.ledger.lacks(B), 80);
    world.wait(100 * MS);
    world.say(A, 0, 0);
    assert_eq!((world.told[&B], world.ledger.lacks(B)), (may(80, false), 0));
    world.say(B, 80, 0);
    world.say(A, 0, 80);
    world.wait(TURN - 200 * MS);
    assert_eq!(world.told[&B], may(80, false));
    world.say_with(B, 80, 0, 80);
    assert_eq!(world.told[&B], may(20, false), "it has become idle");
    // It was not, and its turn is over.
    world.wait(IDLE_PATIENCE);
    assert_eq!(world.told[&B], may(20, true));
    world.say(B, 0, 80);
    assert_eq!(world.told[&A], may(80, false));
}

#[test]
fn a_turn_is_long_where_making_room_takes_long() {
    let mut world = World::contended([0, 0]);
    world.wait(SECOND);
    world.say(A, 0, 80);
    world.say(B, 80, 0);
    world.wait(TURN_FACTOR * SECOND - MS);
    assert_eq!(world.told[&B], may(80, false));
    world.wait(MS);
    assert_eq!(world.told[&B], may(20, true));
}

#[test]
fn a_turn_stands_still_while_its_vm_waits() {
    let mut world = World::contended([0, 0]);
    world.wait(MS);
    world.say(A, 0, 80);
    assert_eq!(world.told[&B], may(80, false));
    world.say(B, 80, 15);
    // The rest was kept for A.
    world.say(A, 0, 80);
    assert_eq!((world.told[&A], world.told[&B]), (may(5, false), may(95, false)));
    world.say(B, 95, 0);
    world.wait(TURN);
    assert_eq!(world.told[&B], may(20, true));
}

#[test]
fn what_is_reserved_is_not_given_up_and_is_there_at_once() {
    let mut world = World::contended([60, 0]);
    world.wait(PATIENCE - MS);
    assert_eq!((world.told[&A], world.told.get(&B)), (may(85, false), None));
    world.wait(MS);
    assert_eq!(world.told[&B], Order::No { waiter: 0 }, "it waits no longer");
    world.say(A, 0, 0);
    world.say(B, 0, 80);
    assert_eq!(world.told[&A], may(20, false), "it does not use what is reserved for it");
    world.say(A, 0, 0);
    world.say(B, 80, 0);
    world.say(A, 0, 50);
    assert_eq!(world.told[&B], may(50, true), "whosever turn it is");
    world.say(B, 0, 80);
    assert_eq!(world.told[&A], may(50, false));
}

#[test]
fn more_than_there_is_is_refused_at_once() {
    let mut world = world([0, 0]);
    world.say(A, 0, 101);
    assert_eq!(world.told[&A], Order::No { waiter: 0 });
    world.say(A, 0, 100);
    assert_eq!(world.told[&A], may(100, false));
}

#[test]
fn contexts_of_one_vm_take_turns_as_well_and_leave_other_vms_theirs() {
    let mut world = world([0, 0]);
    world.say(A, 0, 60);
    for exchange in 0..3 {
        world.exchange();
        assert_eq!(world.told[&A], may(70, false), "exchange {exchange}");
    }
    // A has waited for longer than B once.
    world.say_of_two();
    world.wait(MS);
    world.say(B, 0, 80);
    world.exchange();
    assert_eq!(world.told[&A], may(60, false));
    world.exchange();
    assert_eq!(world.told[&B], may(80, false));
}

#[test]
fn a_turn_stands_still_for_a_bounded_time_whatever_its_vm_asks_for() {
    let mut world = World::contended([0, 0]);
    world.wait(MS);
    world.say(A, 0, 80);
    assert_eq!(world.told[&B], may(80, false));
    // B asks for more again and again, and A cannot be made to give it.
    for _ in 0..30 {
        world.say_with(B, 80, 15, 0);
        world.wait(SECOND / 2);
        world.say(B, 80, 0);
        world.wait(MS);
    }
    assert_ne!(world.told[&B], may(80, false), "A has waited for 15 s");
}

#[test]
fn what_others_made_room_for_is_kept_for_a_while() {
    let mut world = World::contended([0, 60]);
    world.say(A, 0, 80);
    world.say(B, 0, 50);
    world.say(A, 20, 60);
    assert_eq!(world.told[&B], may(50, false));
    world.say(B, 0, 0);
    world.say(A, 20, 60);
    world.wait(TURN_MAX - SECOND);
    assert_ne!(world.told[&A], may(80, false), "B may want it again at once");
    world.wait(2 * SECOND);
    world.say(B, 0, 0);
    world.say(A, 20, 60);
    assert_eq!(world.told[&A], may(80, false));
}

#[test]
fn memory_that_none_waits_for_any_more_is_kept() {
    let mut world = World::contended([0, 0]);
    assert_eq!(world.told[&A], may(20, true));
    world.say(B, 0, 0);
    assert_eq!(world.told[&A], may(85, false));
}

#[test]
fn memory_counts_until_the_workers_of_a_device_process_have_ended() {
    let mut world = World::contended([0, 0]);
    world.ledger.ends(A, world.now);
    world.wait(GHOST - MS);
    assert_eq!(world.told.get(&B), None);
    world.wait(MS);
    assert_eq!(world.told[&B], may(80 + 5, false));
}

#[test]
fn each_context_that_waits_has_its_own_time() {
    let mut world = World::contended([90, 0]);
    world.wait(PATIENCE - MS);
    let other = RoomState { wanted: 80, least: 80, waiter: 7, ..RoomState::default() };
    world.ledger.hears(B, other, world.now);
    world.wait(PATIENCE - MS);
    assert_eq!(world.told.get(&B), None);
    world.wait(MS);
    assert_eq!(world.told[&B], Order::No { waiter: 7 });
}

#[test]
fn a_vm_that_claims_to_hold_more_than_it_may_harms_no_other() {
    let mut world = world([0, 0]);
    for _ in 0..3 {
        world.ledger.hears(
            A,
            RoomState { held: u64::MAX, wanted: u64::MAX, least: 1, idle: u64::MAX, ..RoomState::default() },
            world.now,
        );
        world.decide();
    }
    world.say(B, 0, 100);
    assert_eq!(world.told[&B], may(100, false));
}

#[test]
fn the_heavier_and_the_longest_waiting_come_first() {
    for (weight, first) in [(100, B), (500, 2)] {
        let mut world = World::contended([0, 0]);
        world.ledger.begins(2, [(0, 100)]);
        world.ledger.set_weight(2, weight);
        world.say(A, 80, 0);
        world.wait(SECOND);
        world.say(2, 0, 80);
        world.wait(SECOND);
        world.say(A, 0, 0);
        assert_eq!(world.told.get(&first), Some(&may(80, false)), "weight {weight}");
    }
}
