//! VMs that are played, mostly on a GPU of 100 bytes.

use super::account::GIVE_UP_PATIENCE;
use super::*;

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1000 * MS;
const PATIENCE: Nanos = 120 * SECOND;
const GIB: u64 = 1 << 30;
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// A ledger, and the last order to each VM and its last report. VMs confirm orders at once, except for the VM that is `deaf`.
#[derive(Default)]
struct World {
    ledger: Ledger,
    told: BTreeMap<usize, (u64, bool)>,
    numbers: BTreeMap<usize, u64>,
    said: BTreeMap<usize, RoomState>,
    deaf: Option<usize>,
    /// The number of orders to VMs.
    orders: usize,
    now: Nanos,
}

fn world(reserved: [u64; 2]) -> World {
    let mut world = World { now: 1000 * SECOND, ..World::default() };
    reserved.into_iter().enumerate().for_each(|(vm, reserved)| world.begins(vm, reserved, &[(0, 100)]));
    world
}

fn may(most: u64, forced: bool) -> (u64, bool) {
    (most, forced)
}

impl World {
    fn begins(&mut self, vm: usize, reserved: u64, gpus: &[(usize, u64)]) {
        let order = self.ledger.begins(vm, reserved, gpus.iter().copied());
        assert_eq!((order.most, order.forced), (0, false));
        self.numbers.insert(vm, order.number);
        self.confirm(vm);
    }

    /// Has a VM that keeps to its limit report the bytes that one of its contexts holds and lacks.
    fn say(&mut self, vm: usize, held: u64, lacks: u64) {
        self.say_with(vm, held, lacks, 0);
    }

    fn say_with(&mut self, vm: usize, held: u64, lacks: u64, idle: u64) {
        let holds = if lacks > 0 { held } else { 0 };
        self.say_all(vm, RoomState { held, lacks, holds, idle, ..RoomState::default() });
    }

    fn say_all(&mut self, vm: usize, state: RoomState) {
        self.said.insert(vm, state);
        self.confirm(vm);
        self.decide();
    }

    /// Has a VM report its last state again, and confirm its last order. If it may hold the memory that it waits for, it holds it.
    fn confirm(&mut self, vm: usize) {
        let said = self.said.entry(vm).or_default();
        let most = self.told.get(&vm).map_or(0, |told| told.0);
        if said.lacks > 0 && said.held.saturating_add(said.lacks) <= most {
            *said = RoomState { held: said.held + said.lacks, back_ms: said.back_ms, ..RoomState::default() };
        }
        self.ledger.hears(vm, RoomState { order: self.numbers[&vm], ..*said }, self.now);
    }

    /// Reports that one busy context of A holds 60 bytes, and another wants as many.
    fn say_of_two(&mut self) {
        self.say_all(A, RoomState { held: 60, lacks: 60, ..RoomState::default() });
    }

    /// Ends the turn of A: its context goes, and A's other context gets the memory unless another VM gets it.
    fn exchange(&mut self) {
        self.say_of_two();
        if !self.told[&A].1 {
            self.wait(TURN);
        }
        assert!(self.told[&A].1, "{:?}", self.told);
        self.say(A, 0, 60);
    }

    fn decide(&mut self) {
        for round in 0.. {
            assert!(round < 100, "they never end: {:?}", self.told);
            let orders = self.ledger.decide(PATIENCE, self.now);
            if orders.is_empty() {
                return;
            }
            for (vm, order) in orders {
                self.orders += 1;
                self.told.insert(vm, (order.most, order.forced));
                if self.deaf != Some(vm) {
                    self.numbers.insert(vm, order.number);
                    self.confirm(vm);
                }
            }
        }
    }

    fn wait(&mut self, time: Nanos) {
        self.now += time;
        self.decide();
    }

    fn turn_end(&self, vm: usize) -> Nanos {
        self.ledger.accounts[&vm].turn.end(self.now)
    }

    /// Has a VM get memory and hold it.
    fn gets(&mut self, vm: usize, bytes: u64) {
        self.say(vm, 0, bytes);
        self.say(vm, bytes, 0);
    }

    /// Has A give way to B after a while: B has the 80 bytes that it waits for, and A waits for as many.
    fn gives_way(&mut self, after: Nanos) {
        self.wait(after);
        self.say(A, 0, 80);
        assert_eq!(self.told[&B], may(80, false));
    }

    /// Checks that the turn of B lasts for so much longer: B keeps its memory until then, and then gives up memory of its busy context.
    fn turn_lasts(&mut self, length: Nanos) {
        let (most, _) = self.told[&B];
        self.wait(length - MS);
        assert_eq!(self.told[&B], may(most, false), "its turn is over too early");
        self.wait(MS);
        assert!(self.told[&B].0 < most && self.told[&B].1, "its turn goes on: {:?}", self.told);
    }

    /// Returns a world in which A has 80 bytes, and B waits for as many.
    fn contended(reserved: [u64; 2]) -> Self {
        let mut world = world(reserved);
        world.gets(A, 80);
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
    // A gives up what it may hold and does not before any context is swapped out.
    world.say(B, 45, 10);
    assert_eq!((world.told[&A], world.told[&B]), (may(45, false), may(55, false)));
}

#[test]
fn idle_contexts_go_at_once_and_busy_ones_when_the_turn_is_over() {
    let mut world = World::contended([0, 0]);
    // A has not waited for another VM, so its turn is over.
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
    // The context was not idle, and the turn of B is over.
    world.wait(IDLE_PATIENCE);
    assert_eq!(world.told[&B], may(20, true));
    world.say(B, 0, 80);
    assert_eq!(world.told[&A], may(80, false));
}

#[test]
fn a_turn_is_long_where_making_room_takes_long() {
    let mut world = World::contended([0, 0]);
    world.gives_way(SECOND);
    world.say(B, 80, 0);
    world.turn_lasts(TURN_FACTOR * SECOND);
    assert_eq!(world.told[&B], may(20, true));
}

#[test]
fn a_turn_stands_still_while_its_vm_waits() {
    let mut world = World::contended([0, 0]);
    world.gives_way(MS);
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
    world.wait(PATIENCE);
    assert_eq!((world.told[&A], world.told.get(&B)), (may(85, false), None));
    assert_eq!(world.ledger.accounts[&B].since, Some(world.now), "it waits for something else by now");
    world.say(A, 0, 0);
    world.say(B, 0, 80);
    assert_eq!(world.told[&A], may(20, false), "it does not use what is reserved for it");
    world.say(A, 0, 0);
    world.say(B, 80, 0);
    world.say(A, 0, 50);
    assert_eq!(world.told[&B], may(50, true), "even in B's turn");
    world.say(B, 0, 80);
    assert_eq!(world.told[&A], may(50, false));
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
    world.wait(MS);
    world.exchange();
    assert_eq!(world.told[&B], may(80, false));
}

#[test]
fn a_turn_stands_still_for_a_bounded_time_whatever_its_vm_asks_for() {
    let mut world = World::contended([0, 0]);
    world.gives_way(MS);
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
    world.wait(RESERVED_KEPT - SECOND);
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
    assert_eq!(world.told[&A], may(80, false));
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
fn the_heavier_and_the_longest_waiting_come_first() {
    for (weight, first) in [(100, B), (500, C)] {
        let mut world = World::contended([0, 0]);
        world.begins(C, 0, &[(0, 100)]);
        world.ledger.set_weight(C, weight);
        world.say(A, 80, 0);
        world.wait(SECOND);
        world.say(C, 0, 80);
        world.wait(SECOND);
        world.say(A, 0, 0);
        assert_eq!(world.told.get(&first), Some(&may(80, false)), "weight {weight}");
    }
}

#[test]
fn a_vm_is_told_nothing_new_before_it_has_confirmed_what_it_was_told_last() {
    let mut world = World::contended([0, 0]);
    world.say(B, 0, 0);
    assert_eq!(world.told[&A], may(80, false));
    (world.deaf, world.orders) = (Some(A), 0);
    for _ in 0..100 {
        world.say(B, 0, 80);
        world.say(B, 0, 0);
        world.wait(PATIENCE);
    }
    assert_eq!(world.orders, 1);
    // A confirmation of an earlier order is no answer to the last one.
    world.say(B, 0, 80);
    world.say(A, 0, 0);
    assert_eq!(world.told.get(&B), None);
}

#[test]
fn a_claim_of_what_cannot_be_takes_nothing_from_others() {
    let claims = [
        RoomState {
            held: u64::MAX,
            lacks: u64::MAX,
            holds: u64::MAX,
            idle: u64::MAX,
            back_ms: u64::MAX,
            order: 0,
        },
        RoomState { lacks: u64::MAX, ..RoomState::default() },
        RoomState { lacks: 101, ..RoomState::default() },
    ];
    for claim in claims {
        let mut world = world([0, 0]);
        world.gets(B, 60);
        world.orders = 0;
        world.say_all(A, claim);
        world.wait(SECOND);
        assert_eq!((world.orders, world.ledger.lacks(A)), (0, 0), "{claim:?}");
        world.say(B, 60, 40);
        assert_eq!(world.told[&B], may(100, false), "{claim:?}");
    }
}

#[test]
fn a_vm_that_does_not_give_up_what_it_waits_for_itself_keeps_others_waiting_for_a_bounded_time() {
    let mut world = world([0, 0]);
    world.say(A, 0, 60);
    world.gets(B, 30);
    // A second context of A wants as much as the first one holds, which does not go.
    world.say_of_two();
    world.wait(TURN);
    assert!(world.told[&A].1, "{:?}", world.told);
    world.say(B, 0, 30);
    assert_eq!(world.told[&B], may(30, false));
    world.orders = 0;
    for _ in 0..100 {
        world.wait(SECOND);
    }
    assert_eq!(world.orders, 0, "B is asked for nothing");
}

#[test]
fn one_that_owes_something_is_asked_for_no_more_and_others_are() {
    let mut world = world([0, 0]);
    world.begins(C, 0, &[(0, 100)]);
    for vm in [A, C] {
        world.say(vm, 0, 40);
        world.say_with(vm, 40, 0, 40);
    }
    world.say(B, 0, 30);
    assert_eq!((world.told[&A], world.told[&C]), (may(30, false), may(40, false)));
    world.wait(IDLE_PATIENCE);
    assert_eq!(world.told[&A], may(30, true));
    // A further request gives A no more time.
    world.wait(GIVE_UP_PATIENCE - SECOND);
    world.say(B, 0, 35);
    assert_eq!((world.told[&A], world.told[&C]), (may(25, true), may(40, false)));
    world.wait(SECOND + MS);
    assert_eq!((world.told[&A], world.told[&C]), (may(25, true), may(25, false)));
    world.say(C, 0, 0);
    assert_eq!(world.told[&B], may(35, false));
}

#[test]
fn what_idle_contexts_are_to_give_up_is_not_asked_of_them_again() {
    let mut world = world([0, 0]);
    world.say(A, 0, 80);
    world.say_with(A, 80, 0, 40);
    world.say(B, 0, 50);
    assert_eq!(world.told[&A], may(50, false));
    world.say(B, 0, 70);
    assert_eq!(world.told[&A], may(30, true), "the rest belongs to busy ones");
}

#[test]
fn one_that_waits_for_what_is_not_given_up_keeps_no_other_waiting() {
    let mut world = world([0, 0]);
    world.begins(C, 0, &[(0, 100)]);
    for (vm, bytes) in [(B, 40), (C, 60)] {
        world.say(vm, 0, bytes);
    }
    world.wait(TURN);
    world.say(A, 0, 60);
    assert_eq!((world.told[&B], world.told[&C]), (may(0, true), may(40, true)));
    world.say(B, 0, 40);
    world.wait(SECOND);
    assert_eq!(world.told[&B], may(0, true), "A is before it");
    world.wait(GIVE_UP_PATIENCE);
    assert_eq!(world.told[&B], may(40, false));
}

#[test]
fn one_that_cannot_give_up_what_it_owes_gets_what_is_free() {
    let mut world = world([0, 0]);
    world.begins(C, 0, &[(1, 100)]);
    world.gets(A, 60);
    world.say(B, 0, 60);
    world.say_all(A, RoomState { held: 60, lacks: 5, ..RoomState::default() });
    world.wait(SECOND);
    assert_eq!(world.told[&A], may(40, true), "B is before it");
    world.wait(GIVE_UP_PATIENCE + MS);
    assert_eq!(world.told[&A], may(65, false));
}

#[test]
fn vms_on_another_gpu_keep_none_waiting() {
    let mut world = World::contended([100, 0]);
    world.begins(C, 0, &[(1, 100)]);
    world.say(C, 0, 40);
    assert_eq!((world.told[&C], world.told.get(&B)), (may(55, false), None));
    world.say(C, 40, 60);
    // A VM on both GPUs counts on both.
    world.ledger.uses(C, [(0, 100), (1, 100)]);
    world.say(C, 100, 0);
    assert!(!world.ledger.is_over_reserved(A));
    world.ledger.uses(B, [(1, 100)]);
    world.say(B, 0, 80);
    assert_eq!(world.told[&C], may(20, true));
    world.say(C, 0, 0);
    assert_eq!(world.told[&B], may(80, false));
}

#[test]
fn what_is_reserved_on_one_gpu_is_added_up() {
    let mut world = world([60, 30]);
    assert!(!world.ledger.is_over_reserved(B));
    world.begins(C, 20, &[(0, 100), (1, 100)]);
    assert!([A, B, C].into_iter().all(|vm| world.ledger.is_over_reserved(vm)));
}

#[test]
fn one_whose_memory_was_wanted_in_vain_has_a_turn() {
    let mut world = World::contended([0, 0]);
    assert_eq!(world.told[&A], may(20, true));
    world.say(B, 0, 0);
    world.wait(TURN - MS);
    world.say(B, 0, 80);
    assert_eq!(world.told[&A], may(80, false), "what it does not use");
    world.wait(MS);
    assert_eq!(world.told[&A], may(20, true));
}

#[test]
fn a_turn_is_long_enough_for_ones_own_coming() {
    let mut world = World { now: 1000 * SECOND, ..World::default() };
    [A, B].into_iter().for_each(|vm| world.begins(vm, 0, &[(0, 64 * GIB)]));
    world.gets(A, 5 * GIB);
    world.say(B, 0, 60 * GIB);
    world.wait(MS);
    world.say(A, 0, 5 * GIB);
    assert_eq!(world.told[&B], may(60 * GIB, false));
    world.say(B, 60 * GIB, 0);
    // The memory of B takes half of a minute to come.
    world.turn_lasts(PATIENCE / 2);
}

#[test]
fn one_that_waited_has_a_turn_even_if_none_made_room_for_it() {
    let mut world = World::contended([100, 0]);
    world.ledger.ends(A, world.now);
    world.wait(GHOST);
    assert_eq!(world.turn_end(B), world.now + TURN);
}

/// Plays VMs that each need more than half of a GPU, and take so long to go and to come back, which counts as a part of their turns. Returns the
/// longest time for which a VM has waited, and the shortest for which a VM has had memory.
fn waits_and_turns(weights: &[u32], copying: Nanos, back: Nanos) -> (Nanos, Nanos) {
    let mut world = World { now: 1000 * SECOND, ..World::default() };
    let mut until = BTreeMap::new();
    let (mut waits, mut longest) = (BTreeMap::new(), 0);
    let (mut has, mut shortest) = (BTreeMap::new(), Nanos::MAX);
    let waiting = RoomState { lacks: 60 * GIB, back_ms: back / MS, ..RoomState::default() };
    for (vm, weight) in weights.iter().enumerate() {
        world.begins(vm, 0, &[(0, 100 * GIB)]);
        world.ledger.set_weight(vm, *weight);
        world.say_all(vm, waiting);
        waits.insert(vm, world.now);
    }
    let begin = world.now;
    for _ in 0..15 * 60 * 5 {
        world.wait(200 * MS);
        for vm in 0..weights.len() {
            let (most, forced) = world.told.get(&vm).copied().unwrap_or_default();
            longest = longest.max(waits.get(&vm).map_or(0, |since| world.now - since));
            if world.said[&vm].held > 0 {
                waits.remove(&vm);
                let since = *has.entry(vm).or_insert(world.now);
                let is_asked = forced && most < 60 * GIB;
                if is_asked && *until.entry(vm).or_insert(world.now + copying) <= world.now {
                    let asked = until.remove(&vm).unwrap() - copying;
                    // The first VM had no turn, as it has not waited.
                    if has.remove(&vm) > Some(begin + 200 * MS) {
                        shortest = shortest.min(asked - since);
                    }
                    waits.insert(vm, world.now);
                    world.say_all(vm, waiting);
                }
            }
        }
    }
    (longest, shortest)
}

#[test]
fn none_of_several_that_take_turns_waits_for_too_long() {
    for (vms, copying, back) in [
        (2, 20 * SECOND, 0),
        (3, 15 * SECOND, 0),
        (4, 10 * SECOND, 0),
        (8, 6 * SECOND, 0),
        (2, 20 * SECOND, 30 * SECOND),
        (3, 15 * SECOND, 20 * SECOND),
        (4, 10 * SECOND, 15 * SECOND),
        (8, 3 * SECOND, 8 * SECOND),
    ] {
        let (longest, shortest) = waits_and_turns(&vec![WEIGHT; vms], copying, back);
        assert!(longest < PATIENCE, "{vms} VMs: {} s", longest / SECOND);
        assert!(shortest >= back + TURN - SECOND, "{vms} VMs: {} s", shortest / SECOND);
    }
    let (longest, _) = waits_and_turns(&[10_000, 10_000, 100], 5 * SECOND, 0);
    assert!(longest < PATIENCE, "a light one: {} s", longest / SECOND);
}

#[test]
fn the_time_in_which_a_program_comes_back_counts_for_its_turn() {
    let mut world = world([0, 0]);
    world.gets(A, 80);
    world.say_all(B, RoomState { lacks: 80, back_ms: 999, ..RoomState::default() });
    world.gives_way(MS);
    world.turn_lasts(TURN_FACTOR * SECOND);
    assert_eq!(world.told[&B], may(20, true));
}

#[test]
fn an_idle_context_that_does_not_go_for_another_of_its_vm_is_made_to() {
    let mut world = world([0, 0]);
    world.say(A, 0, 60);
    world.say_all(A, RoomState { held: 60, lacks: 60, idle: 60, ..RoomState::default() });
    assert_eq!(world.told[&A], may(40, false));
    world.say_of_two();
    world.wait(IDLE_PATIENCE);
    assert!(world.told[&A].1, "{:?}", world.told);
}

#[test]
fn a_vm_that_comes_to_another_gpu_hears_how_much_there_is() {
    let mut world = world([0, 0]);
    world.ledger.uses(A, [(1, 700)]);
    let orders = world.ledger.decide(PATIENCE, world.now);
    assert_eq!(orders.iter().map(|(vm, order)| (*vm, order.total)).collect::<Vec<_>>(), [(A, 700)]);
}

#[test]
fn a_turn_is_as_long_as_what_it_costs_and_the_patience_of_others_allow() {
    let cost = 25 * SECOND;
    let length = |patience, others| turn_length(cost, patience * SECOND, others) / SECOND;
    assert_eq!((length(120, 1), length(600, 1), length(600, 2)), (60, 200, 150));
}

#[test]
fn a_turn_costs_what_coming_back_took_the_last_time() {
    let mut world = World { now: 1000 * SECOND, ..World::default() };
    [A, B].into_iter().for_each(|vm| world.begins(vm, 0, &[(0, 64 * GIB)]));
    world.gets(A, 60 * GIB);
    world.say_all(B, RoomState { lacks: 60 * GIB, back_ms: 2_000, ..RoomState::default() });
    world.wait(SECOND);
    world.say(A, 0, 0);
    assert_eq!(world.turn_end(B), world.now + TURN_FACTOR * 3 * SECOND);
}

#[test]
fn a_turn_is_shorter_when_more_wait_than_at_its_begin() {
    let mut world = World { now: 1000 * SECOND, ..World::default() };
    (0..4).for_each(|vm| world.begins(vm, 0, &[(0, 100)]));
    world.gets(A, 80);
    world.say_all(B, RoomState { lacks: 80, back_ms: 10_000, ..RoomState::default() });
    world.wait(MS);
    world.say(A, 0, 0);
    assert_eq!(world.turn_end(B), world.now + PATIENCE / 2);
    [2, 3].into_iter().for_each(|vm| world.say(vm, 0, 80));
    assert_eq!(world.turn_end(B), world.now + PATIENCE / 2 / 2);
}

#[test]
fn a_turn_that_is_cut_while_it_stands_still_goes_on_behind_that() {
    let mut world = World { now: 1000 * SECOND, ..World::default() };
    (0..4).for_each(|vm| world.begins(vm, 0, &[(0, 100)]));
    world.gets(A, 80);
    world.say_all(B, RoomState { lacks: 80, back_ms: 10_000, ..RoomState::default() });
    world.wait(MS);
    world.say(A, 20, 0);
    let begun = world.now;
    assert_eq!(world.turn_end(B), begun + PATIENCE / 2);
    world.wait(5 * SECOND);
    world.say(B, 80, 10);
    assert_eq!(world.told[&A], may(10, true), "it does not give that up at once");
    world.wait(SECOND);
    [2, 3].into_iter().for_each(|vm| world.say(vm, 0, 80));
    assert_eq!(world.turn_end(B), begun + PATIENCE / 2 / 2 + SECOND);
    world.wait(SECOND);
    world.say(A, 10, 0);
    assert_eq!(world.told[&B], may(90, false));
    world.wait(SECOND);
    assert_eq!(world.turn_end(B), begun + PATIENCE / 2 / 2 + 2 * SECOND);
}
