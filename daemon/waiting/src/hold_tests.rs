//! A held answer is for a program that waits; these tests show that answers are held for such a program, not for one that only looks.

use super::*;
use crate::{Heuristic, Tunables};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

fn tunables() -> HoldTunables {
    Tunables::among(4).hold
}

fn at_once() -> Duration {
    tunables().at_once
}

/// A guest and its clock.
struct Guest {
    holds: Holds,
    now: Instant,
}

impl Guest {
    fn new() -> Self {
        Self { holds: Holds::new(tunables()), now: Instant::now() }
    }

    /// Asks for a fence after a pause, and gets the answer when the hold is over.
    fn asks(&mut self, fence: u64, pause: Duration, finally: bool) -> Option<Hold> {
        let about = About { id: fence, counter: None };
        self.asks_about(about, pause, finally.then_some(about))
    }

    /// Asks for a state after a pause, and returns the hold. `told` is the state when the hold is over, if the answer differs.
    fn asks_about(&mut self, about: About, pause: Duration, told: Option<About>) -> Option<Hold> {
        self.now += pause;
        let hold = self.holds.decide(about, self.now);
        self.now += match hold {
            Some(Hold::Closely) => tunables().hold,
            Some(Hold::Loosely(limit)) => limit,
            None => Duration::ZERO,
        };
        self.holds.answer(told.unwrap_or(about), told.is_some(), self.now);
        hold
    }
}

#[test]
fn who_waits_is_held_closely_and_then_for_a_part_of_the_time_it_sleeps_anyway() {
    let mut guest = Guest::new();
    assert_eq!(guest.asks(1, MS, false), Some(Hold::Closely));
    for _ in 0..14 {
        assert_eq!(guest.asks(1, 5 * US, false), Some(Hold::Closely));
    }
    let began = guest.now;
    for _ in 0..40 {
        let Some(Hold::Loosely(held)) = guest.asks(1, 220 * US, false) else { panic!("not held") };
        assert!(held <= ((guest.now - began) / 4).max(MS), "{held:?} of {:?}", guest.now - began);
    }
    assert_eq!(guest.asks(1, 220 * US, true).map(|_| ()), Some(()));
    // After that the guest is held as before.
    assert_eq!(guest.asks(1, 500 * US, false), Some(Hold::Closely));
}

#[test]
fn who_asks_on_and_on_is_never_held_for_long_and_keeps_no_processor_busy() {
    let mut guest = Guest::new();
    let began = guest.now;
    while guest.now - began < 20 * MS {
        match guest.asks(1, 5 * US, false) {
            Some(Hold::Closely) => assert!(guest.now - began <= tunables().closely_max + MS),
            other => assert_eq!(other, Some(Hold::Loosely(tunables().hold))),
        }
    }
}

#[test]
fn who_does_other_things_in_between_is_held_once() {
    let mut guest = Guest::new();
    assert_eq!(guest.asks(1, MS, false), Some(Hold::Closely));
    for round in 0..1000_u64 {
        // Neither a query for the same fence nor a query for a new fence each time is held.
        assert_eq!(guest.asks(1, at_once() + US, false), None);
        assert_eq!(guest.asks(round, at_once() + (1 + round as u32) * US, false), None);
    }
    // Once the program waits, its answers are held from its second query on.
    assert_eq!(guest.asks(2000, at_once() + US, false), None);
    assert_eq!(guest.asks(2000, 5 * US, false), Some(Hold::Closely));
    assert_eq!(guest.asks(2000, 5 * US, true), Some(Hold::Closely));
    assert_eq!(guest.asks(2001, MS, false), Some(Hold::Closely));
}

#[test]
fn a_pause_after_few_looks_is_no_sleep_of_who_waits() {
    let mut guest = Guest::new();
    for _ in 0..5 {
        guest.asks(1, 5 * US, false);
    }
    assert_eq!(guest.asks(1, 220 * US, false), None);
    for _ in 0..20 {
        guest.asks(1, 5 * US, false);
    }
    // The program comes back after a long time.
    assert_eq!(guest.asks(1, 2000 * MS, false), None);
}

#[test]
fn who_waits_for_several_is_held() {
    let mut guest = Guest::new();
    (1..4).for_each(|fence| _ = guest.asks(fence, 5 * US, false));
    for _ in 0..5 {
        for fence in 1..4 {
            assert_eq!(guest.asks(fence, 5 * US, false), Some(Hold::Closely));
        }
    }
    assert!((10..100).all(|fence| guest.asks(fence, MS, false).is_none()));
    assert!(guest.holds.open.len() <= OPEN_MAX);
}

#[test]
fn a_counter_that_has_moved_since_it_was_told_is_told_at_once() {
    let mut guest = Guest::new();
    let counter = |value| About { id: 7, counter: Some(value) };
    // The guest may wait for this very value.
    assert_eq!(guest.asks_about(counter(4), MS, None), None);
    assert_eq!(guest.asks_about(counter(4), 5 * US, None), Some(Hold::Closely));
    assert_eq!(guest.asks_about(counter(4), 5 * US, Some(counter(5))), Some(Hold::Closely));
    // The guest waits for the next value.
    assert_eq!(guest.asks_about(counter(5), MS, None), Some(Hold::Closely));
    assert_eq!(guest.asks_about(counter(6), 5 * US, None), None);
    assert_eq!(guest.asks_about(counter(8), MS, None), None);
}

#[test]
fn a_hold_ends_when_there_is_something_to_tell_and_not_before_its_time() {
    let (over, limit) = (AtomicBool::new(false), Duration::from_secs(600));
    let is_over = || over.load(SeqCst);
    let begin = Instant::now();
    tunables().loosely(10 * MS, is_over, thread::sleep);
    assert!(begin.elapsed() >= 10 * MS);
    thread::scope(|scope| {
        let held = scope.spawn(|| tunables().loosely(limit, is_over, thread::sleep));
        thread::sleep(20 * MS);
        assert!(!held.is_finished());
        over.store(true, SeqCst);
    });
    assert!(begin.elapsed() < limit);
    let begin = Instant::now();
    tunables().closely(|| false, thread::sleep);
    assert!(begin.elapsed() >= tunables().hold);
}

#[test]
fn where_answers_are_not_held_a_hold_takes_no_time() {
    let tunables = Tunables::among(4).without(Heuristic::Hold).hold;
    let never = |_| panic!("it waits");
    tunables.closely(|| false, never);
    let mut guest = Guest { holds: Holds::new(tunables), now: Instant::now() };
    for pause in [MS, 5 * US, 5 * US, 220 * US] {
        if let Some(Hold::Loosely(limit)) = guest.asks(1, pause, false) {
            tunables.loosely(limit, || false, never);
        }
    }
}
