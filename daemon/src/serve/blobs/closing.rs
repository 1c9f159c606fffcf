//! This file has questions and accounts wait until the [`Closer`] has closed descriptors, and until nothing is left of workers. The kernel frees a
//! driver's memory when its last descriptor is closed, and no process can get that memory before.

use super::closer::{Closer, Given};
use protocol::ids::ContextId;
use std::time::{Duration, Instant};

/// Time for a wait, at most: far longer than a worker has to end by itself, and than the kernel's driver takes to free all memory of a GPU.
const CLOSED_MAX: Duration = Duration::from_secs(5);
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Questions of workers that wait at once, at most; a further one is answered without a wait.
const QUESTIONS_MAX: usize = 1024;

/// A question or an account that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Waits {
    /// The question of a context's worker, by its number.
    Worker(ContextId, u32),
    /// The accounts of the worker with this number, whose process has ended.
    Ended(u64),
}

/// The questions and accounts that wait, the oldest first.
#[derive(Debug, Default)]
pub(in crate::serve) struct Closing {
    waiting: Vec<Waiting>,
    next: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    waits: Waits,
    /// The descriptors that are to be closed.
    given: Given,
    /// The numbers of the workers of which something is left.
    workers: Vec<u64>,
    /// The time at which the wait ends in any case.
    until: Instant,
}

impl Closing {
    /// Returns whether nothing waits.
    pub(in crate::serve) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Has a question or an account wait until these are closed, or for [`CLOSED_MAX`].
    pub(in crate::serve) fn await_closed(&mut self, waits: Waits, given: Given, now: Instant) {
        self.await_ended(waits, given, Vec::new(), now);
    }

    /// Has a question or an account wait until these are closed and nothing is left of these workers, or for [`CLOSED_MAX`].
    pub(in crate::serve) fn await_ended(
        &mut self,
        waits: Waits,
        given: Given,
        workers: Vec<u64>,
        now: Instant,
    ) {
        let is_full = self.waiting.len() >= QUESTIONS_MAX && matches!(waits, Waits::Worker(..));
        let until = if is_full { now } else { now + CLOSED_MAX };
        self.waiting.push(Waiting { waits, given, workers, until });
        self.next = Some(now);
    }

    /// Nothing is left of the worker with this number.
    pub(in crate::serve) fn nothing_is_left(&mut self, number: u64, now: Instant) {
        for Waiting { workers, .. } in &mut self.waiting {
            workers.retain(|worker| *worker != number);
            self.next = Some(now);
        }
    }

    /// Takes the questions and accounts that need not wait any more.
    pub(in crate::serve) fn take_done(&mut self, closer: &Closer, now: Instant) -> Vec<Waits> {
        if self.next.is_none_or(|next| now < next) {
            return Vec::new();
        }
        let is_done = |Waiting { given, workers, until, .. }: &mut Waiting| {
            workers.is_empty() && closer.has_closed(*given) || now >= *until
        };
        let done = self.waiting.extract_if(.., is_done).map(|waiting| waiting.waits).collect();
        self.next = (!self.waiting.is_empty()).then_some(now + LOOK_EVERY);
        done
    }

    /// The time of the next look; none while nothing waits.
    pub(in crate::serve) fn next_due(&self) -> Option<Instant> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time after which a test counts as hung.
    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn what_waits_goes_on_when_all_is_closed_that_was_given_before_or_after_a_while() {
        let (mut closing, mut closer, begun) = (Closing::default(), Closer::default(), Instant::now());
        let question = |number| Waits::Worker(ContextId(1), number);
        assert_eq!(closing.next_due(), None);
        closing.await_closed(question(1), closer.given(), begun);
        closer.close([std::fs::File::open("/dev/null").unwrap().into()]);
        closing.await_closed(question(2), closer.given(), begun);
        closing.await_closed(Waits::Ended(7), closer.given(), begun);
        let mut done = Vec::new();
        while done.len() < 3 {
            assert!(begun.elapsed() < LONG && closing.next_due().is_some());
            done.extend(closing.take_done(&closer, Instant::now()));
        }
        assert_eq!(done, [question(1), question(2), Waits::Ended(7)]);
        assert_eq!(closing.next_due(), None);
    }

    #[test]
    fn a_question_waits_until_nothing_is_left_of_the_workers_either() {
        let (mut closing, closer, now) = (Closing::default(), Closer::default(), Instant::now());
        let question = Waits::Worker(ContextId(1), 1);
        closing.await_ended(question, closer.given(), vec![7, 8], now);
        for (number, done) in [(8, &[][..]), (9, &[]), (7, &[question])] {
            closing.nothing_is_left(number, now);
            assert_eq!(closing.take_done(&closer, now), done, "{number}");
        }
    }

    #[test]
    fn nothing_waits_for_ever_and_too_many_questions_do_not_wait() {
        let (mut closing, closer, now) = (Closing::default(), Closer::default(), Instant::now());
        let never = Given::of_tests(u64::MAX);
        for number in 0..=QUESTIONS_MAX as u32 {
            closing.await_closed(Waits::Worker(ContextId(1), number), never, now);
        }
        closing.await_closed(Waits::Ended(7), never, now);
        let last = Waits::Worker(ContextId(1), QUESTIONS_MAX as u32);
        assert_eq!(closing.take_done(&closer, now), [last]);
        assert_eq!(closing.next_due(), Some(now + LOOK_EVERY));
        assert_eq!(closing.take_done(&closer, now), [], "it is not looked at before");
        assert_eq!(closing.take_done(&closer, now + CLOSED_MAX).len(), QUESTIONS_MAX + 1);
    }
}
