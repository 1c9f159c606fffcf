//! The turn of one VM: the time for which others do not have its busy contexts swapped out.

use super::account::GIVE_UP_PATIENCE;
use sched::Nanos;
use serde::{Deserialize, Serialize};

/// The longest time for which a turn stands still in all, in nanoseconds: as long as other VMs have for giving up a little memory.
const STANDS_MAX: Nanos = GIVE_UP_PATIENCE;

/// A turn, which may be over; times are in nanoseconds. The turn stands still while its VM waits for memory that others do not keep.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Turn {
    /// The time at which the turn began.
    from: Nanos,
    /// The length without the time for which the turn stands still, and the length that it keeps however many others wait.
    length: Nanos,
    least: Nanos,
    /// The time for which the turn has stood still, and the time since which it stands still again.
    stood: Nanos,
    stands_since: Option<Nanos>,
}

impl Turn {
    /// Returns a turn of this length that begins now. Shortening leaves it at least `least`.
    pub(super) fn begin(length: Nanos, least: Nanos, now: Nanos) -> Self {
        Self { from: now, length, least: least.min(length), ..Self::default() }
    }

    /// A turn of no length: its VM has none.
    pub(super) fn over(now: Nanos) -> Self {
        Self::begin(0, 0, now)
    }

    /// Returns when the turn is over, or would be if it ran on from now.
    pub(super) fn end(&self, now: Nanos) -> Nanos {
        self.from.saturating_add(self.length).saturating_add(self.stood(now))
    }

    pub(super) fn is_over(&self, now: Nanos) -> bool {
        self.end(now) <= now
    }

    fn stood(&self, now: Nanos) -> Nanos {
        let stands = self.stands_since.map_or(0, |since| now.saturating_sub(since));
        self.stood.saturating_add(stands).min(STANDS_MAX)
    }

    /// Stops the turn, if it is not over.
    pub(super) fn stand_still(&mut self, now: Nanos) {
        if !self.is_over(now) {
            self.stands_since.get_or_insert(now);
        }
    }

    /// Has the turn run on from now on, if it stands still.
    pub(super) fn run_on(&mut self, now: Nanos) {
        (self.stood, self.stands_since) = (self.stood(now), None);
    }

    /// Shortens the turn to `most`, but not below its least length.
    pub(super) fn shorten(&mut self, most: Nanos) {
        self.length = self.length.min(most.max(self.least));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;
    const BEGIN: Nanos = 1000 * SECOND;

    fn turn(length: Nanos, least: Nanos) -> Turn {
        Turn::begin(length * SECOND, least * SECOND, BEGIN)
    }

    fn ends(turn: &Turn, at: Nanos) -> Nanos {
        (turn.end(BEGIN + at * SECOND) - BEGIN) / SECOND
    }

    #[test]
    fn a_turn_runs_on_behind_each_time_for_which_it_has_stood_still() {
        let mut turn = turn(5, 2);
        assert!(Turn::default().is_over(0) && !turn.is_over(BEGIN) && turn.is_over(BEGIN + 5 * SECOND));
        turn.run_on(BEGIN + SECOND);
        for at in [1, 5] {
            turn.stand_still(BEGIN + at * SECOND);
            turn.stand_still(BEGIN + (at + 2) * SECOND);
            turn.run_on(BEGIN + (at + 3) * SECOND);
            turn.run_on(BEGIN + (at + 4) * SECOND);
        }
        assert_eq!(ends(&turn, 0), 5 + 3 + 3);
    }

    #[test]
    fn it_stands_still_for_a_bounded_time_and_not_when_it_is_over() {
        let mut long = turn(5, 2);
        long.stand_still(BEGIN + 4 * SECOND);
        assert_eq!([6, 14, 20].map(|at| ends(&long, at)), [7, 15, 15]);
        let mut over = turn(5, 2);
        over.stand_still(BEGIN + 5 * SECOND);
        assert!([5, 6, 15, 20].into_iter().all(|at| over.is_over(BEGIN + at * SECOND)));
        assert_eq!(ends(&over, 20), 5, "it has not stood still");
    }

    #[test]
    fn one_that_is_cut_while_it_stands_still_has_stood_all_the_same() {
        for (most, least, length) in [(6, 2, 6), (3, 2, 3), (1, 2, 2), (60, 2, 9)] {
            let mut turn = turn(9, least);
            turn.stand_still(BEGIN + 4 * SECOND);
            turn.shorten(most * SECOND);
            turn.run_on(BEGIN + 7 * SECOND);
            // A turn that was over by then has not begun again.
            assert_eq!((ends(&turn, 7), turn.is_over(BEGIN + 7 * SECOND)), (length + 3, length <= 4));
        }
    }
}
