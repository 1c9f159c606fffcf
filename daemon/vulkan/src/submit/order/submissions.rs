//! The submissions of a queue that have not ended, in order, as their stages change.
//!
//! Some have no marker of their own ([`super::deferred_markers`]). They are known to be complete when a later submission is, and until then
//! share the time in which the first of them can run. Submissions that wait at the gate stand behind all that the driver has.

use super::pace::Pace;
use super::submission::{Awaited, Beginning, Dispatched, Ended, Left, Submission};
use super::waits::Driver;
use crate::context::ranked::{Ranked, SUBMISSIONS};
use crate::logical::submitted::Number;
use crate::logical::timeline::Look;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Instant;

/// The submissions of a queue behind their lock.
pub(super) type LockedSubmissions = Ranked<SUBMISSIONS, Submissions>;

/// A value for each submission of a call, or for each submission that ends at one time: usually there is only one.
pub(crate) type Few<T> = SmallVec<[T; 1]>;

/// The submissions of a queue.
#[derive(Debug)]
pub(super) struct Submissions {
    /// All that have not ended, in the order of their numbers.
    pending: VecDeque<Submission>,
    /// Markers of ended submissions that threads still wait for.
    left: Vec<Left>,
    /// The number of the last submission that began, or 0.
    last: Number,
    /// True if a thread has asked for the end of the last submission, or of an earlier one.
    wanted: bool,
    /// True while the gate's watcher waits for one of the submissions.
    is_watched: bool,
    /// True when the device is destroyed, and no submission begins any more.
    is_closed: bool,
    pace: Pace,
}

/// The choice of the submission to watch among those that the driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// The first that has a marker: the end of each is to be known at once.
    First,
    /// The first that has a marker behind the first half.
    Half,
    /// The last, so that those before it need not be looked at one by one.
    Last,
}

impl Submissions {
    /// Creates the submissions of a queue that has none.
    pub(super) fn new(now: Instant) -> Self {
        let (pending, left, last, wanted, is_watched, is_closed) = Default::default();
        Self { pending, left, last, wanted, is_watched, is_closed, pace: Pace::new(now) }
    }

    /// Adds a submission that begins. Returns its number.
    pub(super) fn begin(&mut self, beginning: Beginning, now: Instant) -> Number {
        if self.pending.is_empty() {
            self.pace.begin(now);
        }
        self.last += 1;
        self.pending.push_back(Submission::new(self.last, beginning));
        self.wanted = false;
        self.last
    }

    /// Notes that the driver is about to be called with a submission. Returns the marker that it takes along, if it has one.
    pub(super) fn grant(&mut self, number: Number, dispatched: Option<Dispatched>) -> Option<u64> {
        self.find(number)?.grant(dispatched)
    }

    /// Notes that the driver has taken a submission.
    pub(super) fn enter_driver(&mut self, number: Number) {
        if let Some(submission) = self.find(number) {
            submission.enter_driver();
        }
    }

    /// Removes submissions that the driver has refused, or that do not reach it. Returns them to be settled.
    pub(super) fn withdraw(&mut self, numbers: &[Number]) -> Few<Ended> {
        let mut ended = Few::new();
        for number in numbers {
            let at = self.position(*number);
            ended.extend(at.and_then(|at| self.pending.remove(at)).map(|one| self.end(one)));
        }
        ended
    }

    /// Takes out the submissions that are complete, to be settled.
    pub(super) fn collect(&mut self, driver: &impl Driver, now: impl Fn() -> Instant) -> Few<Ended> {
        let mut complete = Few::new();
        let is_complete = |marked: &Submission| {
            marked.is_in_driver() && marked.marker().is_some_and(|marker| driver.is_signalled(marker))
        };
        loop {
            let marked = self.unmarked_at_first();
            if !self.pending.get(marked).is_some_and(is_complete) {
                return complete;
            }
            for _ in 0..=marked {
                complete.extend(self.pending.pop_front().map(|one| self.end(one)));
            }
            self.pace.begin(now());
        }
    }

    /// Returns whether no submission begins any more.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Removes all submissions of an idle queue whose host's queue is locked; returns them to be settled. No submission may begin any more.
    pub(super) fn close(&mut self) -> Few<Ended> {
        self.is_closed = true;
        let pending = std::mem::take(&mut self.pending);
        pending.into_iter().map(|one| self.end(one)).collect()
    }

    fn end(&mut self, submission: Submission) -> Ended {
        let (ended, left) = submission.end();
        self.left.extend(left);
        ended
    }

    /// Returns the number of the last submission that has ended together with all before it, or 0.
    pub(super) fn ended(&self) -> Number {
        self.pending.front().map_or(self.last, |first| first.number() - 1)
    }

    /// Returns the first submission that has not ended; to be called after [`Self::collect`].
    pub(super) fn first(&self) -> Option<&Submission> {
        self.pending.front()
    }

    /// Returns the number of submissions that have not ended.
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns whether a submission up to `number` cannot have begun to run.
    pub(super) fn is_blocked(&self, driver: &impl Driver, number: Number) -> bool {
        let mut up_to = self.pending.iter().take_while(|submission| submission.number() <= number);
        up_to.any(|submission| submission.is_blocked(driver))
    }

    /// Returns whether the next submission may go without a marker: fewer than `most` in a row before it do, the end of the last need not be
    /// known, and none was found to run long of late.
    pub(super) fn spares_marker(&self, most: usize) -> bool {
        !self.wanted
            && !self.pace.is_long()
            && self.pending.iter().rev().take_while(|last| !last.has_marker()).count() < most
    }

    /// Returns whether the last submission has no marker that tells its end.
    pub(super) fn ends_unmarked(&self) -> bool {
        self.pending.back().is_some_and(|last| !last.has_marker())
    }

    /// Returns the last submission that the driver has, if it has any up to `number` and no marker tells their end.
    pub(super) fn unmarked(&mut self, number: Number) -> Option<Number> {
        let in_driver = self.in_driver();
        let up_to = self.pending.partition_point(|submission| submission.number() <= number).min(in_driver);
        let from = up_to.checked_sub(1)?;
        if self.pending.range(from..in_driver).any(Submission::has_marker) {
            return None;
        }
        self.wanted = true;
        self.pending.get(in_driver - 1).map(Submission::number)
    }

    /// Returns whether a submission has no marker and has not ended: the caller then has to mark it and to call [`Self::mark`]. Until that call
    /// the submission stays: [`Self::collect`] stops at it, and [`Self::close`] needs the host's queue, which the caller has locked.
    pub(super) fn begin_marking(&mut self, number: Number) -> bool {
        self.find(number).is_some_and(Submission::begin_marking)
    }

    /// Notes that the driver has a marker behind a submission, or could not take any.
    pub(super) fn mark(&mut self, number: Number, marker: Option<u64>) {
        if let Some(submission) = self.find(number) {
            submission.mark(marker);
        }
    }

    /// Returns a submission that the driver has, if no thread watches any: the caller watches it from now on.
    pub(super) fn watch(&mut self, which: Watched) -> Option<Awaited> {
        if self.is_watched {
            return None;
        }
        let last = self.in_driver().checked_sub(1)?;
        let from = match which {
            Watched::First => 0,
            Watched::Half => last / 2,
            Watched::Last => last,
        };
        let tells = |submission: &Submission| submission.has_marker() && submission.is_in_driver();
        let marked = (from..last).find(|at| self.pending.get(*at).is_some_and(tells));
        let awaited = self.pending.get_mut(marked.unwrap_or(last))?.await_end(true);
        (self.wanted, self.is_watched) = (true, true);
        Some(awaited)
    }

    /// Returns the last submission that the driver has: when it is complete, all are. The caller waits for it from now on.
    pub(super) fn await_last(&mut self) -> Option<Awaited> {
        self.wanted = true;
        let last = self.in_driver().checked_sub(1)?;
        Some(self.pending.get_mut(last)?.await_end(false))
    }

    /// Returns whether a submission that began has ended, or was forgotten.
    pub(super) fn is_gone(&self, number: Number) -> bool {
        self.position(number).is_none()
    }

    /// Returns the marker of a submission that has one and has not ended.
    pub(super) fn marker(&self, number: Number) -> Option<u64> {
        self.pending.get(self.position(number)?)?.marker()
    }

    /// Notes that a thread that waited for a submission waits no more. Returns the marker, if it is free now.
    pub(super) fn let_go(&mut self, awaited: Awaited) -> Option<u64> {
        let number = awaited.number;
        self.is_watched &= !awaited.for_watcher;
        awaited.release();
        if let Some(pending) = self.find(number) {
            pending.let_go();
            return None;
        }
        let at = self.left.iter().position(|left| left.is_of(number))?;
        let is_last = self.left.get_mut(at)?.let_go();
        is_last.then(|| self.left.swap_remove(at)).and_then(|left| left.marker())
    }

    /// Checks how long the first submission has run; `begun` is false if the device is known not to have begun it. To be called after
    /// [`Self::collect`] for all queues, because queues wait for each other.
    pub(super) fn look(&mut self, driver: &impl Driver, now: Instant, begun: bool) -> Look {
        let (first, ended) = (self.pending.front(), self.ended());
        let runs = |first: &&Submission| begun && !first.is_held() && first.can_run(driver);
        let together = first.filter(runs).map(|_| self.unmarked_at_first() + 1);
        self.pace.look(now, ended, first.is_some(), together)
    }

    /// Sets the run time of the first submission to 0.
    pub(super) fn restart(&mut self) {
        self.pace.restart();
    }

    /// Returns the number of submissions before the first that has a marker.
    fn unmarked_at_first(&self) -> usize {
        self.pending.iter().take_while(|submission| !submission.has_marker()).count()
    }

    /// Returns the number of submissions that the driver has: they are in front of those that wait at the gate.
    fn in_driver(&self) -> usize {
        self.pending.partition_point(Submission::is_in_driver)
    }

    fn position(&self, number: Number) -> Option<usize> {
        self.pending.binary_search_by_key(&number, Submission::number).ok()
    }

    fn find(&mut self, number: Number) -> Option<&mut Submission> {
        let at = self.position(number)?;
        self.pending.get_mut(at)
    }
}

#[cfg(test)]
#[path = "submissions_tests.rs"]
mod tests;
