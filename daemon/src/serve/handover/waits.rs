//! The times for which contexts have waited for the GPUs' memory: each request, and each context that wants to come back.
//!
//! A worker that comes to rest for a hand-over takes its requests back, and asks anew when it goes on: that is the same wait. Knows no clock: time is passed in.

use crate::device::Lack;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Time in which a worker asks anew that has come to rest and does so no more.
const ASKS_WITHIN: Duration = Duration::from_secs(1);

/// The request that waits, or the context that wants to come back.
type Waiter = (ContextId, Option<u32>);

/// The waits.
#[derive(Debug, Default)]
pub(in crate::serve) struct Waits {
    since: FxHashMap<Waiter, Instant>,
    interrupted: FxHashMap<ContextId, Interrupted>,
}

/// The waits of one context whose requests were taken back.
#[derive(Debug, Default)]
struct Interrupted {
    /// The times since which they last, the latest first: no more than there were requests at a time.
    since: Vec<Instant>,
    /// The time until which its worker may ask anew; none before the next look.
    until: Option<Instant>,
}

impl Waits {
    /// The worker of a context has taken a request back that waits, as it comes to rest: the wait goes on when it asks anew.
    pub(in crate::serve) fn interrupt(&mut self, ctx_id: ContextId, request: u32) {
        // One that no look has found yet has not waited.
        let Some(since) = self.since.remove(&(ctx_id, Some(request))) else { return };
        let one = self.interrupted.entry(ctx_id).or_default();
        one.since.insert(one.since.partition_point(|other| *other > since), since);
        one.until = None;
    }

    /// Notes all that waits now. `rests` says whether a context's worker is at rest, or about to be.
    pub(in crate::serve) fn look(&mut self, lacks: &[Lack], rests: impl Fn(ContextId) -> bool, now: Instant) {
        for (ctx_id, one) in &mut self.interrupted {
            if one.until.is_none() || rests(*ctx_id) {
                one.until = Some(now + ASKS_WITHIN);
            }
        }
        self.interrupted.retain(|_, one| !one.since.is_empty() && one.until > Some(now));
        let before = std::mem::take(&mut self.since);
        for lack in lacks {
            let since = before.get(&waiter(lack)).copied().or_else(|| self.goes_on(lack));
            self.since.insert(waiter(lack), since.unwrap_or(now));
        }
    }

    /// Takes up the longest wait of a context that was interrupted, for a request that has not waited yet.
    fn goes_on(&mut self, lack: &Lack) -> Option<Instant> {
        lack.request?;
        self.interrupted.get_mut(&lack.ctx_id)?.since.pop()
    }

    /// A context has ended. Another of the same number has not waited.
    pub(in crate::serve) fn ends(&mut self, ctx_id: ContextId) {
        self.since.retain(|(waiting, _), _| *waiting != ctx_id);
        self.interrupted.remove(&ctx_id);
    }

    /// Returns since when this one waits.
    pub(in crate::serve) fn since(&self, lack: &Lack, now: Instant) -> Instant {
        self.since.get(&waiter(lack)).copied().unwrap_or(now)
    }

    /// Returns since when the first waits.
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
        for (taken_back, request, waited) in
            [(true, Some(2), true), (false, Some(2), false), (true, None, false)]
        {
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
            waits.look(&[lack(request)], |_| false, at(9));
            let since = if waited { at(0) } else { at(9) };
            assert_eq!((waits.first(), waits.since(&lack(request), at(9))), (Some(since), since));
            // What it asks for later is another matter.
            waits.look(&[], |_| false, at(20));
            waits.look(&[lack(Some(3))], |_| false, at(21));
            assert_eq!(waits.first(), Some(at(21)));
        }
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
        // Within one look, and one that is new.
        let lacks = [3, 4, 5, 6].map(|request| lack(Some(request)));
        waits.look(&lacks, |_| false, at(9));
        assert_eq!(lacks.map(|lack| waits.since(&lack, at(9))), [0, 1, 2, 9].map(at));
        waits.interrupt(CONTEXT, 3);
        waits.ends(CONTEXT);
        waits.look(&[lack(Some(0))], |_| false, at(9));
        assert_eq!(waits.first(), Some(at(9)), "it is another context");
    }
}
