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
        self.ledger.hears(vm, RoomState { most, held, wanted: held + lacks, least, idle }, self.now);
        self.decide();
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
    assert_eq!(world.told[&B], Order::No, "it waits no longer");
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
    assert_eq!(world.told[&A], Order::No);
    world.say(A, 0, 100);
    assert_eq!(world.told[&A], may(100, false));
}

#[test]
fn contexts_of_one_vm_take_turns_as_well() {
    let mut world = world([0, 0]);
    world.say(A, 0, 80);
    world.say(A, 80, 0);
    let state = RoomState { most: 85, held: 80, wanted: 150, least: 70, idle: 0 };
    world.ledger.hears(A, state, world.now);
    world.decide();
    assert!(matches!(world.told[&A], Order::May { most: 35, forced: true }), "{:?}", world.told);
}

#[test]
fn a_vm_that_claims_to_hold_more_than_it_may_harms_no_other() {
    let mut world = world([0, 0]);
    for _ in 0..3 {
        world.ledger.hears(
            A,
            RoomState { most: 0, held: u64::MAX, wanted: u64::MAX, least: 1, idle: u64::MAX },
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
