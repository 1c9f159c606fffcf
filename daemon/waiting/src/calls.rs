//! This file decides when to call a queue's driver: at once if the guest waits for an answer, otherwise along with the next answer, for a short time.
//!
//! A call interrupts the guest. Mesa from 26.2 on sends two requests for each submission, and waits only for the first: the second answer only
//! returns descriptors. The second answer is in the used ring at once. The driver is told of it along with the first answer, which is the fence, or
//! along with the next submission's answer if the first was told already. VIRTIO 1.3, 2.7.7.2 demands the call, not its time.

use super::tunables::CallsTunables;
use std::time::Instant;

/// The answers of which a driver has to be told.
#[derive(Debug)]
pub struct Calls {
    tunables: CallsTunables,
    /// Requests that were taken and not answered.
    open: u32,
    /// The guest waits for an answer that is in the used ring.
    urgent: bool,
    /// The number of answers for which the guest does not wait, and the time of the first.
    quiet: Option<(u32, Instant)>,
    /// The time of the last call for a program that waited.
    told: Option<Instant>,
}

impl Calls {
    /// Makes the state of a queue from which no request was taken yet.
    #[must_use]
    pub fn new(tunables: CallsTunables) -> Self {
        Self { tunables, open: 0, urgent: false, quiet: None, told: None }
    }

    /// Counts a request that was taken.
    pub fn taken(&mut self) {
        self.open += 1;
    }

    /// Counts a request whose answer is known.
    pub fn settled(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// Returns the number of requests that were taken and not answered.
    pub fn open(&self) -> u32 {
        self.open
    }

    /// Returns whether there are requests that were taken and not answered.
    pub fn are_open(&self) -> bool {
        self.open > 0
    }

    /// Notes that an answer was put into the used ring; `awaited` if the guest may wait for it.
    pub fn put(&mut self, awaited: bool) {
        match (awaited, &mut self.quiet) {
            (true, _) => self.urgent = true,
            (false, Some((count, _))) => *count += 1,
            (false, None) => self.quiet = Some((1, Instant::now())),
        }
    }

    /// Returns whether to call the driver now.
    pub fn is_due(&self) -> bool {
        let CallsTunables { quiet_max, quiet_for, behind } = self.tunables;
        self.urgent
            || self.quiet.is_some_and(|(count, since)| {
                let is_last = self.open == 0 && self.told.is_none_or(|told| since >= told + behind);
                is_last || count >= quiet_max || since.elapsed() >= quiet_for
            })
    }

    /// Returns the latest time to call the driver, if quiet answers wait.
    pub fn deadline(&self) -> Option<Instant> {
        self.quiet.map(|(_, since)| since + self.tunables.quiet_for)
    }

    /// Notes that the driver was called.
    pub fn told(&mut self) {
        if self.urgent {
            self.told = Some(Instant::now());
        }
        (self.urgent, self.quiet) = (false, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Heuristic, Tunables};
    use std::time::Duration;

    fn none() -> Calls {
        Calls::new(Tunables::among(4).calls)
    }

    #[test]
    fn a_quiet_answer_waits_for_another_while_there_will_be_one() {
        let mut calls = none();
        assert!(!calls.is_due() && calls.deadline().is_none());
        (0..2).for_each(|_| calls.taken());
        calls.settled();
        calls.put(false);
        let late = calls.deadline();
        assert!(late.is_some() && (!calls.is_due() || late <= Some(Instant::now())));
        calls.settled();
        calls.put(true);
        assert!(calls.is_due());
        calls.told();
        assert!(!calls.is_due() && calls.deadline().is_none());
        std::thread::sleep(calls.tunables.behind);
        // No other answer will come.
        calls.put(false);
        assert!(calls.is_due());
    }

    #[test]
    fn a_quiet_answer_behind_one_that_was_told_waits_for_the_next() {
        let mut calls = Calls { told: Some(Instant::now() + Duration::from_secs(3600)), ..none() };
        calls.put(false);
        let is_due = calls.is_due();
        assert!(!is_due || calls.deadline() <= Some(Instant::now()));
        calls.put(true);
        assert!(calls.is_due());
        calls.told();
        assert!(!calls.is_due() && calls.told <= Some(Instant::now()));
    }

    #[test]
    fn quiet_answers_wait_neither_for_long_nor_in_numbers() {
        let mut calls = none();
        calls.taken();
        (0..calls.tunables.quiet_max).for_each(|_| calls.put(false));
        assert!(calls.is_due());
        calls.told();
        calls.put(false);
        std::thread::sleep(calls.tunables.quiet_for);
        assert!(calls.is_due());
    }

    #[test]
    fn where_calls_are_not_put_off_each_answer_is_due() {
        let mut calls = Calls::new(Tunables::among(4).without(Heuristic::Calls).calls);
        (0..2).for_each(|_| calls.taken());
        assert!(!calls.is_due());
        calls.put(false);
        assert!(calls.is_due());
    }
}
