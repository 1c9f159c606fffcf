//! The times for which requests for GPU memory have waited, and contexts that are swapped out and want to come back.
//!
//! A worker that comes to rest for a hand-over takes its requests back, and asks anew when it goes on: the wait goes on too. Time is passed in.

use crate::device::Lack;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Time in which a worker has to ask anew, from the first look that finds it at rest no more.
const ASKS_WITHIN: Duration = Duration::from_secs(1);

/// The request that waits, or the context that wants to come back.
type Waiter = (ContextId, Option<u32>);

/// The waits.
#[derive(Debug, Default)]
pub(in crate::serve) struct Waits {
    since: FxHashMap<Waiter, Instant>,
    interrupted: FxHashMap<ContextId, Interrupted>,
}

/// A wait, written down for another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::serve) struct PassedWait {
    ctx_id: ContextId,
    request: Option<u32>,
    has_lasted: Duration,
}

/// The waits of one context whose requests were taken back.
#[derive(Debug, Default)]
struct Interrupted {
    /// The times at which the waits began, the latest first: no more than there were requests at a time.
    since: Vec<Instant>,
    /// The time until which the worker may ask anew; none while it is at rest, or about to be.
    until: Option<Instant>,
}

impl Waits {
    /// The worker of a context has taken back a waiting request, as it comes to rest: the wait goes on when the worker asks anew.
    pub(in crate::serve) fn interrupt(&mut self, ctx_id: ContextId, request: u32) {
        // A request that no look has found yet has not waited.
        let Some(since) = self.since.remove(&(ctx_id, Some(request))) else { return };
        let one = self.interrupted.entry(ctx_id).or_default();
        one.since.insert(one.since.partition_point(|other| *other > since), since);
        one.until = None;
    }

    /// The worker of a context asks for memory: the longest interrupted wait of the context goes on. If the request need not wait, the next look
    /// forgets that wait.
    pub(in crate::serve) fn asks(&mut self, ctx_id: ContextId, request: u32) {
        if let Some(since) = self.interrupted.get_mut(&ctx_id).and_then(|one| one.since.pop()) {
            self.since.insert((ctx_id, Some(request)), since);
        }
    }

    /// Notes all that waits now. `rests` says whether a context's worker is at rest, or about to be.
    pub(in crate::serve) fn look(&mut self, lacks: &[Lack], rests: impl Fn(ContextId) -> bool, now: Instant) {
        for (ctx_id, one) in &mut self.interrupted {
            match rests(*ctx_id) {
                true => one.until = None,
                false => _ = one.until.get_or_insert(now + ASKS_WITHIN),
            }
        }
        self.interrupted.retain(|_, one| !one.since.is_empty() && one.until.is_none_or(|until| now < until));
        let before = std::mem::take(&mut self.since);
        let since = |lack: &Lack| before.get(&waiter(lack)).copied().unwrap_or(now);
        self.since = lacks.iter().map(|lack| (waiter(lack), since(lack))).collect();
    }

    /// A context has ended or is swapped out: forgets its waits, so that a later context of the same number has none.
    pub(in crate::serve) fn ends(&mut self, ctx_id: ContextId) {
        self.since.retain(|(waiting, _), _| *waiting != ctx_id);
        self.interrupted.remove(&ctx_id);
    }

    /// Writes all waits down for another process. A wait of a worker that has been at rest in the last second may begin anew there.
    pub(in crate::serve) fn pass_on(&self, now: Instant) -> Vec<PassedWait> {
        let passed = |(waiter, since): (&Waiter, &Instant)| PassedWait {
            ctx_id: waiter.0,
            request: waiter.1,
            has_lasted: now.saturating_duration_since(*since),
        };
        self.since.iter().map(passed).collect()
    }

    /// Goes on with the waits of another process.
    pub(in crate::serve) fn resume(&mut self, passed: Vec<PassedWait>, now: Instant) {
        let since = |wait: &PassedWait| now.checked_sub(wait.has_lasted).unwrap_or(now);
        self.since = passed.iter().map(|wait| ((wait.ctx_id, wait.request), since(wait))).collect();
    }

    /// Returns the time since which this request or context waits.
    pub(in crate::serve) fn since(&self, lack: &Lack, now: Instant) -> Instant {
        self.since.get(&waiter(lack)).copied().unwrap_or(now)
    }

    /// Returns the time since which the first waits.
    pub(in crate::serve) fn first(&self) -> Option<Instant> {
        self.since.values().min().copied()
    }
}

fn waiter(lack: &Lack) -> Waiter {
    (lack.ctx_id, lack.request)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: ContextId = ContextId(1);

    fn lack(request: Option<u32>) -> Lack {
        Lack { ctx_id: CONTEXT, request, bytes: 1 }
    }

    #[test]
    fn a_request_that_is_made_anew_after_a_hand_over_has_waited_already() {
        for (taken_back, asks, waited) in [(true, true, true), (false, true, false), (true, false, false)] {
            let request = asks.then_some(2);
            let mut waits = Waits::default();
            let begin = Instant::now();
            let at = |seconds| begin + Duration::from_secs(seconds);
            waits.look(&[lack(Some(1))], |_| false, at(0));
            if taken_back {
                waits.interrupt(CONTEXT, 1);
            }
            waits.look(&[], |_| true, at(5));
            assert_eq!(waits.first(), None);
            waits.look(&[], |_| true, at(9));
            request.into_iter().for_each(|request| waits.asks(CONTEXT, request));
            waits.look(&[lack(request)], |_| false, at(9));
            let since = if waited { at(0) } else { at(9) };
            assert_eq!((waits.first(), waits.since(&lack(request), at(9))), (Some(since), since));
            // A later request is a new wait.
            waits.look(&[], |_| false, at(20));
            waits.asks(CONTEXT, 3);
            waits.look(&[lack(Some(3))], |_| false, at(21));
            assert_eq!(waits.first(), Some(at(21)));
        }
    }

    #[test]
    fn a_request_is_made_anew_within_a_second_from_the_first_look_that_finds_no_rest() {
        for (asks_at, waited) in [(9_900, true), (10_100, false)] {
            let mut waits = Waits::default();
            let begin = Instant::now();
            let at = |millis| begin + Duration::from_millis(millis);
            waits.look(&[lack(Some(1))], |_| false, at(0));
            waits.interrupt(CONTEXT, 1);
            waits.look(&[], |_| true, at(5_000));
            waits.look(&[], |_| false, at(9_000));
            waits.look(&[], |_| false, at(asks_at));
            waits.asks(CONTEXT, 2);
            waits.look(&[lack(Some(2))], |_| false, at(asks_at));
            assert_eq!(waits.first(), Some(at(if waited { 0 } else { asks_at })));
        }
    }

    #[test]
    fn a_request_that_is_made_anew_and_granted_at_once_lends_its_age_to_no_other() {
        let mut waits = Waits::default();
        let begin = Instant::now();
        waits.look(&[lack(Some(1))], |_| false, begin);
        waits.interrupt(CONTEXT, 1);
        waits.asks(CONTEXT, 2);
        // The next request may come before a look at the waits.
        waits.asks(CONTEXT, 3);
        waits.look(&[lack(Some(3))], |_| false, begin + ASKS_WITHIN);
        assert_eq!(waits.first(), Some(begin + ASKS_WITHIN));
    }

    #[test]
    fn requests_that_are_made_anew_have_waited_for_as_long_as_those_that_were_taken_back() {
        let mut waits = Waits::default();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        for seconds in 0..3 {
            let lacks: Vec<_> = (0..=seconds).map(|request| lack(Some(request))).collect();
            waits.look(&lacks, |_| false, at(seconds.into()));
        }
        [1, 0, 2, 7].into_iter().for_each(|request| waits.interrupt(CONTEXT, request));
        // The requests come within one look, and one of them is new.
        let lacks = [3, 4, 5, 6].map(|request| lack(Some(request)));
        (3..7).for_each(|request| waits.asks(CONTEXT, request));
        waits.look(&lacks, |_| false, at(9));
        assert_eq!(lacks.map(|lack| waits.since(&lack, at(9))), [0, 1, 2, 9].map(at));
        waits.interrupt(CONTEXT, 3);
        waits.ends(CONTEXT);
        waits.asks(CONTEXT, 0);
        waits.look(&[lack(Some(0))], |_| false, at(9));
        assert_eq!(waits.first(), Some(at(9)), "it is another context");
    }
}
