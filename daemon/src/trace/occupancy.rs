//! The VMs and contexts that a GPU was busy for, and the part of a time that each had.

use std::collections::BTreeMap;

/// Sorted intervals that do not overlap, with the sum of those before each.
#[derive(Debug, Default)]
struct Intervals(Vec<(u64, u64, u64)>);

impl Intervals {
    fn new(mut intervals: Vec<(u64, u64)>) -> Self {
        intervals.sort_unstable();
        let (mut merged, mut sum): (Vec<(u64, u64, u64)>, u64) = (Vec::new(), 0);
        for (begin, end) in intervals.into_iter().filter(|(begin, end)| begin < end) {
            match merged.last_mut() {
                Some((_, until, _)) if *until >= begin => {
                    sum += end.saturating_sub(*until);
                    *until = end.max(*until);
                }
                _ => {
                    merged.push((begin, end, sum));
                    sum += end - begin;
                }
            }
        }
        Self(merged)
    }

    fn before(&self, at: u64) -> u64 {
        let next = self.0.partition_point(|(begin, ..)| *begin < at);
        let last = next.checked_sub(1).and_then(|last| self.0.get(last));
        last.map_or(0, |(begin, end, sum)| sum + (at.min(*end) - begin))
    }

    fn within(&self, begin: u64, end: u64) -> u64 {
        self.before(end).saturating_sub(self.before(begin))
    }
}

/// The times for which a GPU was busy, by holder.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    holders: BTreeMap<String, Intervals>,
    all: Intervals,
}

impl Occupancy {
    /// Returns the occupancy of these times.
    pub(super) fn new(times: impl IntoIterator<Item = (String, u64, u64)>) -> Self {
        let mut holders: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
        for (holder, begin, end) in times {
            holders.entry(holder).or_default().push((begin, end));
        }
        let all = Intervals::new(holders.values().flatten().copied().collect());
        let holders = holders.into_iter().map(|(holder, times)| (holder, Intervals::new(times))).collect();
        Self { holders, all }
    }

    /// Returns the VMs or contexts that held the GPU between two times, and for how long, the longest first. `None` is the idle time.
    pub(super) fn within(&self, begin: u64, end: u64) -> Vec<(Option<&str>, u64)> {
        let held = self.holders.iter().map(|(holder, times)| (Some(&**holder), times.within(begin, end)));
        let idle = end.saturating_sub(begin).saturating_sub(self.all.within(begin, end));
        let mut held: Vec<_> = held.chain([(None, idle)]).filter(|(_, time)| *time > 0).collect();
        held.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shared_out_among_holders_and_nobody() {
        let times = [("a", 0, 10), ("b", 20, 50), ("a", 40, 60), ("a", 55, 58), ("b", 100, 100)];
        let occupancy = Occupancy::new(times.map(|(holder, begin, end)| (holder.to_owned(), begin, end)));
        assert_eq!(occupancy.within(0, 70), [(Some("a"), 30), (Some("b"), 30), (None, 20)]);
        assert_eq!(occupancy.within(5, 25), [(None, 10), (Some("a"), 5), (Some("b"), 5)]);
        assert_eq!(occupancy.within(42, 47), [(Some("a"), 5), (Some("b"), 5)]);
        assert_eq!(occupancy.within(60, 60), []);
        assert_eq!(Occupancy::default().within(3, 8), [(None, 5)]);
    }
}
