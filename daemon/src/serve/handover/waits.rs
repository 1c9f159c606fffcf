//! The times for which contexts have waited for the GPUs' memory: each request, and each context that wants to come back.
//!
//! A worker that comes to rest for a hand-over takes its requests back, and asks anew when it goes on: that is the same wait. Knows no clock: time is passed in.

use crate::device::Lack;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Time after the end of a hand-over in which a worker asks anew.
const ASKS_WITHIN: Duration = Duration::from_secs(1);

/// The request that waits, or the context that wants to come back.
type Waiter = (ContextId, Option<u32>);

/// The waits.
#[derive(Debug, Default)]
pub(in crate::serve) struct Waits {
    since: FxHashMap<Waiter, Instant>,
    /// The contexts whose requests were taken back: since when they wait, and until when they may ask anew.
    interrupted: FxHashMap<ContextId, (Instant, Instant)>,
}

impl Waits {
    /// Notes all that waits now. `is_handed_over` says whether a context is being handed over.
    pub(in crate::serve) fn look(
        &mut self,
        lacks: &[Lack],
        is_handed_over: impl Fn(ContextId) -> bool,
        now: Instant,
    ) {
        let before = std::mem::take(&mut self.since);
        for (ctx_id, (_, until)) in &mut self.interrupted {
            if is_handed_over(*ctx_id) {
                *until = now + ASKS_WITHIN;
            }
        }
        self.interrupted.retain(|_, (_, until)| now < *until);
        for lack in lacks {
            let anew = self.interrupted.get(&lack.ctx_id).filter(|_| lack.request.is_some());
            let since = before.get(&waiter(lack)).copied().or(anew.map(|(since, _)| *since));
            self.since.insert(waiter(lack), since.unwrap_or(now));
        }
        for ((ctx_id, request), since) in before {
            if request.is_some() && !self.since.contains_key(&(ctx_id, request)) && is_handed_over(ctx_id) {
                let (first, _) = self.interrupted.entry(ctx_id).or_insert((since, now + ASKS_WITHIN));
                *first = since.min(*first);
            }
        }
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
        for (handed_over, request, waited) in
            [(true, Some(2), true), (false, Some(2), false), (true, None, false)]
        {
            let mut waits = Waits::default();
            let begin = Instant::now();
            let at = |seconds| begin + Duration::from_secs(seconds);
            waits.look(&[lack(Some(1))], |_| false, at(0));
            waits.look(&[], |_| handed_over, at(5));
            assert_eq!(waits.first(), None);
            waits.look(&[], |_| handed_over, at(9));
            waits.look(&[lack(request)], |_| false, at(9));
            let since = if waited { at(0) } else { at(9) };
            assert_eq!((waits.first(), waits.since(&lack(request), at(9))), (Some(since), since));
            // What it asks for later is another matter.
            waits.look(&[], |_| false, at(20));
            waits.look(&[lack(Some(3))], |_| false, at(21));
            assert_eq!(waits.first(), Some(at(21)));
        }
    }
}
