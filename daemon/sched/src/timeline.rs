//! The record of which context used the GPU when, so that time in which several contexts used the GPU is paid only once: each pays in proportion to
//! how busy it was. This file knows no tenants and no clock.
//!
//! A GPU that time-slices contexts runs them alternately, so their spans overlap; each context then had only a part of the GPU. Spans come in any
//! order. So a context that first paid in full gets a part back when the span of another context turns out to overlap its own.

use super::{ContextKey, Nanos};
use std::collections::VecDeque;

/// The latest spans, cut into segments where a span begins or ends.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    /// The segments, by time; none overlaps another.
    segments: VecDeque<Segment>,
    /// The latest times in which a context was busy throughout.
    runs: VecDeque<Run>,
    /// A count above 0 while contexts are seen to run alternately.
    sliced: u32,
}

/// The cost of a new span.
#[derive(Debug, PartialEq)]
pub(super) struct Cost {
    /// The GPU time that the span's context had.
    pub(super) own: Nanos,
    /// The amounts that other contexts paid too much, and too little.
    pub(super) refunds: Vec<(ContextKey, Nanos)>,
    pub(super) dues: Vec<(ContextKey, Nanos)>,
}

#[derive(Clone, Debug)]
struct Segment {
    begin: Nanos,
    end: Nanos,
    /// The contexts that used the GPU, each with its part of the time, in units of `1 / WHOLE`.
    users: Vec<(ContextKey, u64)>,
}

impl Timeline {
    /// Adds the span `begin..end` in which a context was busy for `busy`, on a GPU with slices of length `slice`; 0 if the length is not known well
    /// enough when the span began.
    pub(super) fn add(
        &mut self,
        key: ContextKey,
        begin: Nanos,
        end: Nanos,
        busy: Nanos,
        slice: Nanos,
    ) -> Cost {
        let mut cost = Cost { own: 0, refunds: Vec::new(), dues: Vec::new() };
        if begin >= end {
            return cost;
        }
        let part = u128::from(busy.min(end - begin)) * u128::from(WHOLE) / u128::from(end - begin);
        let part = u64::try_from(part).unwrap_or(WHOLE);
        self.cut(begin);
        self.cut(end);
        let mut index = self.segments.partition_point(|segment| segment.end <= begin);
        let mut at = begin;
        while at < end {
            let next = self.segments.get(index).map_or(end, |segment| segment.begin.clamp(at, end));
            if next > at {
                self.segments.insert(index, Segment { begin: at, end: next, users: Vec::new() });
            }
            at = self.segments[index].end;
            self.segments[index].join(key, part, &mut cost);
            index += 1;
        }
        let excess = self.segments.len().saturating_sub(SEGMENTS_MAX);
        self.segments.drain(..excess);
        if slice > 0 {
            let overlaps = !cost.refunds.is_empty();
            self.sliced = if overlaps { SLICED } else { self.sliced.saturating_sub(1) };
        }
        if part == WHOLE && slice > 0 {
            self.weigh_first_slices(key, begin, end, slice, &mut cost);
        }
        cost
    }

    /// Weighs the first slices of two contexts that ran alternately. Each had half of the time, except that the context that began later had the
    /// first slice. So it had more, unless the other had a whole slice after that. Spans that follow each other at once belong to the same run.
    fn weigh_first_slices(
        &mut self,
        key: ContextKey,
        begin: Nanos,
        end: Nanos,
        slice: Nanos,
        cost: &mut Cost,
    ) {
        let run = self.runs.iter().rposition(|run| run.key == key);
        let run = run.filter(|run| begin.saturating_sub(self.runs[*run].end) <= slice / 8);
        let run = run.and_then(|run| self.runs.remove(run));
        let old = run.unwrap_or(Run { key, begin, end: begin });
        let new = Run { key, begin: old.begin, end: old.end.max(end) };
        let others =
            self.runs.iter().filter(|other| other.key != key && other.overlap(&new) > other.overlap(&old));
        for other in others {
            let (less, more) =
                (first_slice(other.overlap(&old), slice), first_slice(other.overlap(&new), slice));
            let later = other.begin < new.begin;
            let (gain, loss) = if later { (more, less) } else { (less, more) };
            if gain > loss {
                cost.own = cost.own.saturating_add(gain - loss);
                cost.refunds.push((other.key, gain - loss));
            } else {
                let amount = (loss - gain).min(cost.own);
                cost.own -= amount;
                cost.dues.push((other.key, amount));
            }
        }
        self.runs.push_back(new);
        if self.runs.len() > RUNS_MAX {
            self.runs.pop_front();
        }
    }

    /// Returns whether the GPU seems to time-slice contexts.
    pub(super) fn is_sliced(&self) -> bool {
        self.sliced > 0
    }

    /// Notes that a later unit completed first, which shows that contexts run alternately.
    pub(super) fn overtaken(&mut self) {
        self.sliced = SLICED;
    }

    /// Splits the segment that `at` lies in.
    fn cut(&mut self, at: Nanos) {
        let index = self.segments.partition_point(|segment| segment.end <= at);
        if let Some(segment) = self.segments.get_mut(index)
            && segment.begin < at
        {
            let head = Segment { end: at, ..segment.clone() };
            segment.begin = at;
            self.segments.insert(index, head);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    key: ContextKey,
    begin: Nanos,
    end: Nanos,
}

impl Run {
    fn overlap(&self, other: &Self) -> Nanos {
        self.end.min(other.end).saturating_sub(self.begin.max(other.begin))
    }
}

/// Returns the time by which, of two contexts, the one that began later had more than half of their common time.
fn first_slice(both: Nanos, slice: Nanos) -> Nanos {
    let cycle = slice.saturating_mul(2).max(1);
    let rest = both % cycle;
    rest.min(cycle - rest) / 2
}

impl Segment {
    fn join(&mut self, key: ContextKey, part: u64, cost: &mut Cost) {
        let before = self.total();
        if self.users.iter().any(|(user, _)| *user == key) {
            cost.own = cost.own.saturating_add(self.price(part, before));
            return;
        }
        let after = before.saturating_add(part);
        for (user, used) in &self.users {
            let refund = self.price(*used, before).saturating_sub(self.price(*used, after));
            match cost.refunds.iter_mut().find(|(other, _)| other == user) {
                Some((_, sum)) => *sum = sum.saturating_add(refund),
                None if refund > 0 => cost.refunds.push((*user, refund)),
                None => {}
            }
        }
        cost.own = cost.own.saturating_add(self.price(part, after));
        if self.users.len() < USERS_MAX {
            self.users.push((key, part));
        }
    }

    fn total(&self) -> u64 {
        self.users.iter().map(|(_, part)| part).sum()
    }

    /// Returns the cost of `part` while all together want `total`: the sum of the costs is at most the segment's length.
    fn price(&self, part: u64, total: u64) -> Nanos {
        let length = u128::from(self.end - self.begin);
        let price = length * u128::from(part) / u128::from(total.max(WHOLE));
        u64::try_from(price).unwrap_or(Nanos::MAX)
    }
}

const WHOLE: u64 = 1 << 16;
/// The number of segments that are kept; older segments are not corrected any more.
const SEGMENTS_MAX: usize = 512;
const RUNS_MAX: usize = 32;
/// After this many spans without an overlap between two, contexts are taken to run one after the other.
const SLICED: u32 = 64;
/// The most contexts that share one segment; further contexts pay, but the segment does not keep them.
const USERS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const A: ContextKey = ContextKey(1);
    const B: ContextKey = ContextKey(2);
    const C: ContextKey = ContextKey(3);

    #[test]
    fn time_that_several_had_is_shared_and_paid_once() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.add(A, 100, 200, 100, 0), Cost { own: 100, refunds: vec![], dues: vec![] });
        assert_eq!(timeline.add(B, 150, 250, 100, 0), Cost { own: 75, refunds: vec![(A, 25)], dues: vec![] });
        let cost = timeline.add(C, 0, 300, 300, 0);
        // 0..100 alone, 100..150 half, 150..200 a third, 200..250 half, 250..300 alone.
        assert_eq!(cost.own, 100 + 25 + 16 + 25 + 50);
        assert_eq!(cost.refunds, [(A, 25 + 9), (B, 9 + 25)]);
    }

    #[test]
    fn those_that_left_room_for_each_other_pay_what_they_used() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.add(A, 0, 1000, 500, 0), Cost { own: 500, refunds: vec![], dues: vec![] });
        assert_eq!(timeline.add(B, 0, 1000, 250, 0), Cost { own: 250, refunds: vec![], dues: vec![] });
        assert_eq!(
            timeline.add(C, 0, 1000, 1000, 0),
            Cost { own: 571, refunds: vec![(A, 215), (B, 108)], dues: vec![] }
        );
    }

    #[test]
    fn a_timeline_stays_small() {
        let mut timeline = Timeline::default();
        for n in 0..10_000 {
            timeline.add(A, n * 10, n * 10 + 7, 7, 0);
            timeline.add(B, n * 7, Nanos::MAX - n, Nanos::MAX, 0);
        }
        assert!(timeline.segments.len() <= SEGMENTS_MAX);
        assert!(timeline.segments.iter().all(|segment| segment.users.len() <= USERS_MAX));
    }
}
