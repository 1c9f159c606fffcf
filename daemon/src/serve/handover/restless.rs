//! For tests, this file has each context restarted or swapped out again and again, at moments that no program can foresee and every run repeats.
//!
//! This file knows no clock: the caller passes the time in.

use super::Purpose;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// The moments at which contexts are handed over.
#[derive(Debug)]
pub(in crate::serve) struct Restless {
    /// The purpose of the hand-overs.
    pub(in crate::serve) purpose: Purpose,
    /// The mean time from the end of a hand-over to the next of the same context.
    mean: Duration,
    next: FxHashMap<ContextId, Instant>,
    /// State of the generator (xorshift), never 0.
    state: u64,
}

impl Restless {
    /// Makes the state before the first hand-over.
    pub(in crate::serve) fn new(purpose: Purpose, mean: Duration) -> Self {
        Self { purpose, mean, next: FxHashMap::default(), state: 0x9e37_79b9_7f4a_7c15 }
    }

    /// Returns the running contexts that are to be handed over now. A context that was not among the running ones last time gets a new moment.
    pub(in crate::serve) fn due(
        &mut self,
        running: impl IntoIterator<Item = ContextId>,
        now: Instant,
    ) -> Vec<ContextId> {
        let before = std::mem::take(&mut self.next);
        let mut due = Vec::new();
        let mut running: Vec<_> = running.into_iter().collect();
        running.sort_unstable_by_key(|ctx_id| ctx_id.0);
        for ctx_id in running {
            let at = match before.get(&ctx_id) {
                Some(at) if *at > now => *at,
                Some(_) => {
                    due.push(ctx_id);
                    now + self.pause()
                }
                None => now + self.pause(),
            };
            self.next.insert(ctx_id, at);
        }
        due
    }

    /// Returns when [`Self::due`] wants to be called next.
    pub(in crate::serve) fn next_due(&self) -> Option<Instant> {
        self.next.values().min().copied()
    }

    /// Returns a time of up to twice the mean.
    fn pause(&mut self) -> Duration {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let part = (self.state >> 40) as f64 / f64::from(1_u32 << 24);
        self.mean.mul_f64(2.0 * part).max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_context_is_restarted_as_often_as_the_mean_says() {
        let begin = Instant::now();
        let mut restless = Restless::new(Purpose::Restart, Duration::from_millis(100));
        let mut counts = [0; 2];
        for ms in 0..10_000 {
            let now = begin + Duration::from_millis(ms);
            for ctx_id in restless.due([ContextId(0), ContextId(1)], now) {
                counts[ctx_id.0 as usize] += 1;
            }
        }
        assert!(counts.iter().all(|count| (80..120).contains(count)), "{counts:?}");
        assert!(restless.next_due().is_some());
        assert_eq!(restless.due([], begin), []);
        assert_eq!(restless.next_due(), None, "one that is gone is forgotten");
    }
}
