//! Looking before sleeping: whether a thread looks for its event, and how long it sleeps first. Both follow from the time that the last wait of the
//! same kind took.

use super::spin::{Spun, within};
use super::tunables::LookTunables;
use std::time::{Duration, Instant};

/// The time that waits of one kind have taken, which is also expected of the next wait.
///
/// A sleeping thread wakes some microseconds after the event, and later the longer it slept. So a thread that waits for an event that comes soon does
/// not sleep. A thread that waits for a later event sleeps for most of the time that the last wait took, and then looks.
#[derive(Debug)]
pub struct Habit {
    /// The thread sleeps through longer waits, and through all waits if this is zero.
    longest: Duration,
    tunables: LookTunables,
    /// The time that the last wait took, if that was not too long.
    expected: Option<Duration>,
}

/// A plan for one wait: both times are zero if the thread just sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The thread sleeps for so long at first, unless the event happens.
    pub sleep: Duration,
    /// The thread then looks for so long.
    pub look: Duration,
}

impl Habit {
    /// Makes a habit without a record yet. A thread does not look for events that take longer than `longest`.
    #[must_use]
    pub fn new(longest: Duration, tunables: LookTunables) -> Self {
        Self { longest, tunables, expected: None }
    }

    /// Returns the plan for the next wait.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let Some(expected) = self.expected else { return Plan::default() };
        let LookTunables { worth_sleeping, margin, .. } = self.tunables;
        match expected <= worth_sleeping {
            true => Plan { sleep: Duration::ZERO, look: 2 * expected + margin },
            false => Plan { sleep: expected * 3 / 4, look: expected / 2 + margin },
        }
    }

    /// Notes the time that the wait took until the event happened.
    pub fn took(&mut self, waited: Duration) {
        self.expected = (waited <= self.longest && !self.longest.is_zero()).then_some(waited);
    }

    /// Waits until `done`. `sleep` sleeps until `done`, at most for its argument; when `sleep(None)` returns, the wait is done.
    pub fn wait(&mut self, done: impl Fn() -> bool, mut sleep: impl FnMut(Option<Duration>)) {
        let (begin, plan) = (Instant::now(), self.plan());
        if !plan.sleep.is_zero() {
            sleep(Some(plan.sleep));
        }
        if plan.look.is_zero() || within(plan.look, &done) != Spun::Seen {
            sleep(None);
        }
        self.took(begin.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tunables;

    const US: Duration = Duration::from_micros(1);

    fn among(processors: usize) -> LookTunables {
        Tunables::among(processors).look
    }

    fn habit(expected: Option<Duration>) -> Habit {
        Habit { expected, ..Habit::new(1000 * US, among(4)) }
    }

    #[test]
    fn nothing_is_looked_for_where_processors_are_few() {
        for (processors, looks) in [(1, false), (3, false), (4, true), (64, true)] {
            let mut habit = Habit::new(among(processors).queue_max, among(processors));
            habit.took(5 * US);
            assert_eq!(!habit.plan().look.is_zero(), looks, "{processors} processors");
        }
    }

    #[test]
    fn what_took_short_is_looked_for_and_what_took_long_is_slept_through() {
        let mut habit = habit(None);
        assert_eq!(habit.plan(), Plan::default());
        habit.took(5 * US);
        assert!(habit.plan().sleep.is_zero() && habit.plan().look > 5 * US);
        habit.took(1000 * US);
        let Plan { sleep, look } = habit.plan();
        assert!(sleep > 500 * US && sleep < 1000 * US && sleep + look > 1000 * US);
        habit.took(1001 * US);
        assert_eq!(habit.plan(), Plan::default());
    }

    #[test]
    fn a_wait_ends_when_it_is_done_and_not_before() {
        for (expected, naps) in [(None, 0), (Some(10 * US), 0), (Some(500 * US), 1)] {
            let (mut habit, mut slept) = (habit(expected), Vec::new());
            habit.wait(|| false, |limit| slept.push(limit));
            assert_eq!(slept.len(), naps + 1);
            assert!(slept.pop() == Some(None) && slept.iter().all(Option::is_some));
        }
        let mut slept = Vec::new();
        habit(Some(500 * US)).wait(|| true, |limit| slept.push(limit));
        assert!(!slept.contains(&None), "no thread sleeps without an end for what is done");
    }
}
