//! This file finds contexts whose programs have done nothing with the GPU for some time.
//!
//! The file knows no clock: the caller passes the time in.

use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Time between two looks, at least and at most. Work between two looks is not missed.
const LOOK_MIN: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_secs(1);

/// The contexts, and the time since which each is idle.
#[derive(Debug)]
pub(in crate::serve) struct Idle {
    /// The time after which a context counts as idle.
    after: Duration,
    next: Option<Instant>,
    contexts: FxHashMap<ContextId, Seen>,
}

/// The state of a context when it was looked at last.
#[derive(Debug)]
struct Seen {
    /// The wakings of the context's rings; none while it does something.
    wakings: Option<u32>,
    /// The time since which the context does nothing.
    since: Instant,
    /// The context was returned as idle, and has done nothing since.
    is_answered: bool,
}

impl Idle {
    /// Begins to look for contexts that do nothing for this time.
    pub(in crate::serve) fn new(after: Duration) -> Self {
        Self { after, next: None, contexts: FxHashMap::default() }
    }

    /// A context was sent work.
    pub(in crate::serve) fn is_used(&mut self, ctx_id: ContextId) {
        if let Some(seen) = self.contexts.get_mut(&ctx_id) {
            seen.wakings = None;
        }
    }

    /// Has a context that was found already be found once more, though it does nothing.
    pub(in crate::serve) fn find_again(&mut self, ctx_id: ContextId) {
        if let Some(seen) = self.contexts.get_mut(&ctx_id) {
            seen.is_answered = false;
        }
    }

    /// Looks at all contexts, each with the wakings of its rings, or nothing while it does something. Returns those that have done nothing for
    /// long enough and are not left alone: each once until it does something again.
    pub(in crate::serve) fn due(
        &mut self,
        contexts: impl Iterator<Item = (ContextId, Option<u32>)>,
        is_left_alone: impl Fn(ContextId) -> bool,
        now: Instant,
    ) -> Vec<ContextId> {
        if self.next.is_some_and(|next| now < next) {
            return Vec::new();
        }
        let before = std::mem::take(&mut self.contexts);
        let mut due = Vec::new();
        for (ctx_id, wakings) in contexts {
            let same = before.get(&ctx_id).filter(|seen| wakings.is_some() && seen.wakings == wakings);
            let (since, was_answered) = same.map_or((now, false), |seen| (seen.since, seen.is_answered));
            let is_long = now.saturating_duration_since(since) >= self.after;
            let is_due = is_long && !was_answered && !is_left_alone(ctx_id);
            due.extend(is_due.then_some(ctx_id));
            self.contexts.insert(ctx_id, Seen { wakings, since, is_answered: was_answered || is_due });
        }
        self.next = (!self.contexts.is_empty()).then(|| now + (self.after / 4).clamp(LOOK_MIN, LOOK_MAX));
        due
    }

    /// Returns those of these contexts, each as for [`Self::due`], that have done nothing for so long, the longest idle one first.
    pub(in crate::serve) fn longest(
        &self,
        contexts: impl Iterator<Item = (ContextId, Option<u32>)>,
        at_least: Duration,
        now: Instant,
    ) -> Vec<ContextId> {
        let idle = contexts.filter_map(|(ctx_id, wakings)| {
            let seen =
                self.contexts.get(&ctx_id).filter(|seen| wakings.is_some() && seen.wakings == wakings)?;
            (now.saturating_duration_since(seen.since) >= at_least).then_some((seen.since, ctx_id))
        });
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable_by_key(|(since, ctx_id)| (*since, ctx_id.0));
        idle.into_iter().map(|(_, ctx_id)| ctx_id).collect()
    }

    /// Returns when [`Self::due`] wants to be called next.
    pub(in crate::serve) fn next_due(&self) -> Option<Instant> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ContextId = ContextId(1);
    const TWO: ContextId = ContextId(2);

    #[test]
    fn one_that_does_nothing_is_found_once_and_one_that_does_something_is_not() {
        let begin = Instant::now();
        let mut idle = Idle::new(Duration::from_millis(400));
        let mut at = |ms: u64, wakings: [Option<u32>; 2], used: bool| {
            if used {
                idle.is_used(ONE);
            }
            let now = begin + Duration::from_millis(ms);
            assert!(idle.next_due().is_none_or(|next| next <= now));
            idle.due([ONE, TWO].into_iter().zip(wakings), |_| false, now)
        };
        for ms in [0, 100, 200, 300] {
            assert_eq!(at(ms, [Some(5), None], false), []);
        }
        assert_eq!(at(400, [Some(5), None], false), [ONE]);
        assert_eq!(at(900, [Some(5), None], false), [], "once");
        // Context ONE has worked between two looks; the other has completed its work.
        assert_eq!(at(1000, [Some(6), Some(0)], false), []);
        assert_eq!(at(1399, [Some(6), Some(0)], false), []);
        assert_eq!(at(1500, [Some(6), Some(0)], true), [TWO]);
        assert_eq!(at(1899, [Some(6), Some(0)], false), []);
        assert_eq!(at(2000, [Some(6), Some(0)], false), [ONE]);
        assert_eq!(idle.due([].into_iter(), |_| false, begin + Duration::from_secs(9)), []);
        assert_eq!(idle.next_due(), None);
    }

    #[test]
    fn one_that_is_left_alone_is_found_later_and_one_that_could_not_go_once_more() {
        let begin = Instant::now();
        let mut idle = Idle::new(Duration::from_secs(1));
        let mut at = |seconds: u64, is_left_alone: bool, again: bool| {
            if again {
                idle.find_again(ONE);
            }
            let now = begin + Duration::from_secs(seconds);
            idle.due([(ONE, Some(0))].into_iter(), |_| is_left_alone, now)
        };
        assert_eq!(at(0, false, false), []);
        assert_eq!(at(1, true, false), []);
        assert_eq!(at(2, false, false), [ONE]);
        assert_eq!(at(3, false, false), []);
        assert_eq!(at(4, true, true), []);
        assert_eq!(at(5, false, false), [ONE]);
    }

    #[test]
    fn one_that_goes_on_between_two_looks_is_not_idle_any_more() {
        let begin = Instant::now();
        let mut idle = Idle::new(Duration::MAX);
        let both = |one, two| [(ONE, one), (TWO, two)].into_iter();
        idle.due(both(Some(1), Some(1)), |_| false, begin);
        idle.due(both(Some(1), Some(1)), |_| false, begin + LOOK_MAX);
        let longest = |one, two| idle.longest(both(one, two), LOOK_MAX, begin + LOOK_MAX);
        assert_eq!(longest(Some(1), Some(1)), [ONE, TWO]);
        assert_eq!(longest(Some(2), Some(1)), [TWO], "it was awake meanwhile");
        assert_eq!(longest(Some(1), None), [ONE], "it is awake");
    }

    #[test]
    fn it_does_not_look_all_the_time() {
        let now = Instant::now();
        let mut idle = Idle::new(Duration::from_secs(60));
        assert_eq!(idle.due([(ONE, Some(0))].into_iter(), |_| false, now), []);
        assert_eq!(idle.next_due(), Some(now + LOOK_MAX));
    }
}
