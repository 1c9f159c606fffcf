//! This file decides how long a ring's thread keeps back an answer that would be "not yet", because its guest would only ask again.
//!
//! Mesa's driver waits for a fence or a semaphore with queries for its state: first some in a row, then with sleeps in between that are far longer
//! than most waits. When it waits for an *answer*, it looks for about a tenth of a millisecond before it sleeps. So a ring's thread holds an answer
//! for less than that, until another answer is known. A program that queries now and then and works in between is not held up: a program that
//! does not ask again at once was not waiting.
//!
//! This file knows no ring and no driver; it learns from the times of state queries.

use super::spin::{self, Spun};
use super::tunables::HoldTunables;
use std::thread;
use std::time::{Duration, Instant};

/// A query of a guest for the state of an object.
pub trait Query {
    /// Returns the object of the query, with its state when the query was made.
    fn about(&self) -> About;

    /// Returns the object of the query, with its state now.
    fn told(&self) -> About;

    /// Returns whether the answer is not "not yet", or no answer will come any more. Does not wait.
    fn is_answered(&self) -> bool;

    /// Returns whether the query is not answered, and will be without an action of the guest.
    fn is_open(&self) -> bool;

    /// Waits until the query is answered, but not for longer than `limit`.
    fn wait(&self, limit: Duration);
}

/// The object of a state query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The guest's name of the object.
    pub id: u64,
    /// The value of a semaphore's counter; none for a fence.
    pub counter: Option<u64>,
}

/// The habits of the program that asks on one ring.
#[derive(Debug)]
pub struct Holds {
    tunables: HoldTunables,
    /// The objects of queries, the latest first.
    open: Vec<Open>,
    /// The time when the last query was answered, if with "not yet".
    answered: Option<Instant>,
    /// The habit of a guest: the last time that it was told "not yet", it asked again at once.
    asks_again: bool,
}

/// A state query that is made again and again.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// The value that the guest was told last.
    told: About,
    /// The time of the first query.
    since: Instant,
    /// The number of queries without a pause; 0 if one was answered.
    looks: u32,
}

/// The way in which the thread holds an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// The thread looks all the time, if enough processors are free.
    Closely,
    /// The thread sleeps between looks.
    Loosely(Duration),
}

impl Holds {
    /// Makes the habits of a program that has not asked yet.
    #[must_use]
    pub fn new(tunables: HoldTunables) -> Self {
        Self { tunables, open: Vec::with_capacity(OPEN_MAX), answered: None, asks_again: true }
    }

    /// Waits until the query is answered, for as long as that is useful, at most until `is_pressed`.
    pub fn hold(&mut self, query: &impl Query, is_pressed: impl Fn() -> bool) {
        let is_over = || query.is_answered() || is_pressed();
        let hold = self.decide(query.about(), Instant::now());
        match hold.filter(|_| query.is_open()) {
            Some(Hold::Closely) => self.tunables.closely(is_over, |limit| query.wait(limit)),
            Some(Hold::Loosely(limit)) => self.tunables.loosely(limit, is_over, |slice| query.wait(slice)),
            None => {}
        }
        self.answer(query.told(), query.is_answered(), Instant::now());
    }

    /// Returns how to hold the answer to a query that comes at `now`.
    fn decide(&mut self, about: About, now: Instant) -> Option<Hold> {
        let tunables = self.tunables;
        let pause = self.answered.take().map(|answered| now.saturating_duration_since(answered));
        let open = self.open(about, now);
        if open.told != about {
            // The answer has come meanwhile, or this is the first query.
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
        if pause.is_some_and(|pause| pause <= tunables.at_once) {
            open.looks = open.looks.saturating_add(1);
            self.asks_again = true;
            return Some(if waited < tunables.closely_max {
                Hold::Closely
            } else {
                Hold::Loosely(tunables.hold)
            });
        }
        let HoldTunables { slept_min, slept_max, long_min, long_max, .. } = tunables;
        let longest = |pause| waited.saturating_sub(pause).max(slept_max);
        let slept = pause.is_some_and(|pause| pause >= slept_min && pause <= longest(pause));
        if slept && open.looks >= tunables.looks_before_sleep {
            return Some(Hold::Loosely((waited / tunables.waited_part).clamp(long_min, long_max)));
        }
        (open.since, open.looks) = (now, 1);
        self.asks_again = false;
        None
    }

    /// Returns the record of a query's object. At the first query for a counter, it is not known which value the guest was told: it may wait for the
    /// present one.
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

    /// Notes the answer to a query.
    fn answer(&mut self, told: About, finally: bool, now: Instant) {
        let Some(open) = self.open.first_mut() else { return };
        if finally || open.told != told {
            open.looks = 0;
        }
        open.told = told;
        self.answered = (open.looks > 0).then_some(now);
    }
}

impl HoldTunables {
    fn closely(&self, is_over: impl Fn() -> bool, wait: impl Fn(Duration)) {
        let start = Instant::now();
        if !self.looks || spin::within(self.hold, &is_over) == Spun::Crowded {
            while let Some(left) = self.hold.checked_sub(start.elapsed()).filter(|_| !is_over()) {
                wait(left);
            }
        }
    }

    /// Holds an answer loosely. With enough processors the thread does not let the driver wait, because some drivers spin in a short wait.
    fn loosely(&self, limit: Duration, is_over: impl Fn() -> bool, wait: impl Fn(Duration)) {
        let start = Instant::now();
        while let Some(left) = limit.checked_sub(start.elapsed()).filter(|_| !is_over()) {
            let slice = left.min(self.slice);
            if self.looks { thread::sleep(slice) } else { wait(slice) }
        }
    }
}

/// The number of queries that are remembered: a program that waits for several objects asks for them in turn.
const OPEN_MAX: usize = 8;

#[cfg(test)]
#[path = "hold_tests.rs"]
mod tests;
