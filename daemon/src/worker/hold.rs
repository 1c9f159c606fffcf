//! This file decides how long a ring's thread keeps an answer back that would be "not yet", because its guest would only ask again.
//!
//! Mesa's driver waits for a fence or a semaphore by asking for its state: some times at once, then with sleeps in between that are far
//! longer than most waits. While it waits for an *answer* it looks for about a tenth of a millisecond before it sleeps. So answers are
//! held for less than that until there is something to tell. Programs that ask now and then and do other things in between are not held
//! up: whoever does not ask again at once was not waiting.
//!
//! Knows no ring and no driver; learns from when state queries came.

use crate::spin::{self, Spun};
use crate::vulkan::{About, StateQuery};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

/// The habits of who asks on one ring.
#[derive(Debug)]
pub(super) struct Holds {
    /// The objects that were asked for, the latest first.
    open: Vec<Open>,
    /// The time when the last query was answered, if with "not yet".
    answered: Option<Instant>,
    /// The habit of a guest: when it was told "not yet", it asked again at once, the last time that somebody was.
    asks_again: bool,
}

/// A state query that is made again and again.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// The value that the guest was told last.
    told: About,
    /// The time when it was asked first.
    since: Instant,
    /// The number of times that it was asked without a pause; 0 if that was answered.
    looks: u32,
}

/// The way an answer is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// By a thread that looks all the time, where there are processors for it.
    Closely,
    /// By one that sleeps in between.
    Loosely(Duration),
}

impl Default for Holds {
    fn default() -> Self {
        Self { open: Vec::with_capacity(OPEN_MAX), answered: None, asks_again: true }
    }
}

impl Holds {
    /// Waits until the query is answered, for as long as that is of use; not longer than until `is_pressed`.
    pub(super) fn hold(&mut self, query: &StateQuery<'_>, is_pressed: impl Fn() -> bool) {
        let is_over = || query.is_answered() || is_pressed();
        let hold = self.decide(query.about(), Instant::now());
        match hold.filter(|_| query.is_open()) {
            Some(Hold::Closely) => closely(is_over, |limit| query.wait(limit)),
            Some(Hold::Loosely(limit)) => loosely(limit, is_over, |slice| query.wait(slice)),
            None => {}
        }
        self.answer(query.told(), query.is_answered(), Instant::now());
    }

    /// Returns how to hold the answer to a query that comes at `now`.
    fn decide(&mut self, about: About, now: Instant) -> Option<Hold> {
        let pause = self.answered.take().map(|answered| now.saturating_duration_since(answered));
        let open = self.open(about, now);
        if open.told != about {
            // The answer has come meanwhile. Or it is asked for the first time.
            let is_new = open.told.counter.is_none();
            (open.told, open.since, open.looks) = (about, now, u32::from(is_new));
            return None;
        }
        if open.looks == 0 {
            (open.since, open.looks) = (now, 1);
            self.asks_again &= pause.is_none();
            return self.asks_again.then_some(Hold::Closely);
        }
        let waited = now.saturating_duration_since(open.since);
        if pause.is_some_and(|pause| pause <= *AT_ONCE) {
            open.looks = open.looks.saturating_add(1);
            self.asks_again = true;
            return Some(if waited < CLOSELY_MAX { Hold::Closely } else { Hold::Loosely(HOLD) });
        }
        let slept = pause
            .is_some_and(|pause| pause >= SLEPT_MIN && pause <= waited.saturating_sub(pause).max(SLEPT_MAX));
        if slept && open.looks >= LOOKS_BEFORE_SLEEP {
            return Some(Hold::Loosely((waited / WAITED_PART).clamp(LONG_MIN, LONG_MAX)));
        }
        (open.since, open.looks) = (now, 1);
        self.asks_again = false;
        None
    }

    /// Returns what is known of what a query is about. Nobody knows what the guest was told of a counter that is asked for the first time: it
    /// may wait for what the counter is.
    fn open(&mut self, about: About, now: Instant) -> &mut Open {
        match self.open.iter().position(|open| open.told.id == about.id) {
            Some(at) => self.open[..=at].rotate_right(1),
            None => {
                self.open.truncate(OPEN_MAX - 1);
                let told = About { counter: None, ..about };
                self.open.insert(0, Open { told, since: now, looks: 0 });
            }
        }
        &mut self.open[0]
    }

    /// A query is answered.
    fn answer(&mut self, told: About, finally: bool, now: Instant) {
        let Some(open) = self.open.first_mut() else { return };
        if finally || open.told != told {
            open.looks = 0;
        }
        open.told = told;
        self.answered = (open.looks > 0).then_some(now);
    }
}

fn closely(is_over: impl Fn() -> bool, wait: impl Fn(Duration)) {
    let start = Instant::now();
    if spin::are_few() || spin::within(HOLD, &is_over) == Spun::Crowded {
        while let Some(left) = HOLD.checked_sub(start.elapsed()).filter(|_| !is_over()) {
            wait(left);
        }
    }
}

/// The driver is not asked to wait where there are processors enough: some spin when they are to wait for a short time.
fn loosely(limit: Duration, is_over: impl Fn() -> bool, wait: impl Fn(Duration)) {
    let start = Instant::now();
    while let Some(left) = limit.checked_sub(start.elapsed()).filter(|_| !is_over()) {
        match spin::are_few() {
            true => wait(left.min(SLICE)),
            false => thread::sleep(left.min(SLICE)),
        }
    }
}

/// The time for which an answer is held: less than Mesa looks for it without sleeping.
const HOLD: Duration = Duration::from_micros(50);
/// Time between two looks, for an answer or for something else to do, of a thread that sleeps in between.
const SLICE: Duration = Duration::from_micros(50);
/// The time within which a guest that waits asks again. Where processors are few it first has to get one.
static AT_ONCE: LazyLock<Duration> =
    LazyLock::new(|| Duration::from_micros(if spin::are_few() { 100 } else { 30 }));
/// After so long one processor that looks all the time is no longer worth it.
const CLOSELY_MAX: Duration = Duration::from_millis(3);

/// Mesa looks so often, or a little more often, before it sleeps.
const LOOKS_BEFORE_SLEEP: u32 = 12;
/// The thread sleeps for so long at least, and for so long at most unless it has waited for longer already. Meanwhile nobody is held up: an answer
/// that comes when it asks next can as well come a little later.
const SLEPT_MIN: Duration = Duration::from_micros(140);
const SLEPT_MAX: Duration = Duration::from_millis(1);
/// From then on an answer is held for this part of the time it has waited. It sleeps while it waits for the answer, too, but always for
/// as short a time as the first; and its time-out, of which it knows only between two queries, is late by no more than that.
const WAITED_PART: u32 = 8;
const LONG_MIN: Duration = Duration::from_micros(500);
const LONG_MAX: Duration = Duration::from_millis(10);

/// The number of queries that are remembered: who waits for several asks for them by turns.
const OPEN_MAX: usize = 8;

#[cfg(test)]
#[path = "hold_tests.rs"]
mod tests;
