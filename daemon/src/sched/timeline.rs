//! Who used the GPU when, so that time which several contexts had together is paid by each in part. Knows no tenants and no clock.
//!
//! A GPU that time-slices contexts runs them alternately, so their spans overlap; each had only a part of the GPU then. Spans come in
//! any order, so who paid first in full has something returned when another's span turns out to overlap his.

use super::{ContextKey, Nanos};
use std::collections::VecDeque;

/// The latest spans, cut where one begins or ends.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    /// By time; none overlaps another.
    segments: VecDeque<Segment>,
}

/// What a new span costs.
#[derive(Debug, PartialEq)]
pub(super) struct Cost {
    /// GPU time that its context had.
    pub(super) own: Nanos,
    /// What others paid too much.
    pub(super) refunds: Vec<(ContextKey, Nanos)>,
}

#[derive(Clone, Debug)]
struct Segment {
    begin: Nanos,
    end: Nanos,
    /// Who used the GPU, and which part of the time, in units of `1 / WHOLE`.
    users: Vec<(ContextKey, u64)>,
}

impl Timeline {
    /// Adds the span `begin..end` in which a context was busy for `busy`.
    pub(super) fn add(&mut self, key: ContextKey, begin: Nanos, end: Nanos, busy: Nanos) -> Cost {
        let mut cost = Cost { own: 0, refunds: Vec::new() };
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
        cost
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

impl Segment {
    fn join(&mut self, key: ContextKey, part: u64, cost: &mut Cost) {
        let before = self.total();
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

    /// What `part` costs while all together want `total`: nobody pays for more than there is.
    fn price(&self, part: u64, total: u64) -> Nanos {
        let length = u128::from(self.end - self.begin);
        let price = length * u128::from(part) / u128::from(total.max(WHOLE));
        u64::try_from(price).unwrap_or(Nanos::MAX)
    }
}

const WHOLE: u64 = 1 << 16;
/// What is older is not corrected any more.
const SEGMENTS_MAX: usize = 128;
/// Contexts that share one segment; more pay without being remembered.
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
        assert_eq!(timeline.add(A, 100, 200, 100), Cost { own: 100, refunds: vec![] });
        assert_eq!(timeline.add(B, 150, 250, 100), Cost { own: 75, refunds: vec![(A, 25)] });
        let cost = timeline.add(C, 0, 300, 300);
        // 0..100 alone, 100..150 half, 150..200 a third, 200..250 half, 250..300 alone.
        assert_eq!(cost.own, 100 + 25 + 16 + 25 + 50);
        assert_eq!(cost.refunds, [(A, 25 + 9), (B, 9 + 25)]);
    }

    #[test]
    fn those_that_left_room_for_each_other_pay_what_they_used() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.add(A, 0, 1000, 500), Cost { own: 500, refunds: vec![] });
        assert_eq!(timeline.add(B, 0, 1000, 250), Cost { own: 250, refunds: vec![] });
        assert_eq!(timeline.add(C, 0, 1000, 1000), Cost { own: 571, refunds: vec![(A, 215), (B, 108)] });
    }

    #[test]
    fn a_timeline_stays_small() {
        let mut timeline = Timeline::default();
        for n in 0..10_000 {
            timeline.add(A, n * 10, n * 10 + 7, 7);
            timeline.add(B, n * 7, Nanos::MAX - n, Nanos::MAX);
        }
        assert!(timeline.segments.len() <= SEGMENTS_MAX);
        assert!(timeline.segments.iter().all(|segment| segment.users.len() <= USERS_MAX));
    }
}
