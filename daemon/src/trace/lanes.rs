//! The rows of a track. Slices of a row may not overlap, so overlapping slices are on different rows.

/// Rows of one track.
const LANES_MAX: usize = 32;
/// Nanoseconds between slices of a row. Readers of the format may round fractions of microseconds down.
const APART: u64 = 4;

/// The rows of a track, to be filled in the order of begins.
#[derive(Debug, Default)]
pub(super) struct Lanes(Vec<u64>);

impl Lanes {
    /// Returns the row for a slice, and the time from which the slice can be shown there: its begin, unless all rows are taken at that time.
    pub(super) fn place(&mut self, begin: u64, end: u64) -> (usize, u64) {
        if let Some(lane) = self.0.iter().position(|until| *until <= begin) {
            self.0[lane] = end.saturating_add(APART);
            return (lane, begin);
        }
        if self.0.len() < LANES_MAX {
            self.0.push(end.saturating_add(APART));
            return (self.0.len() - 1, begin);
        }
        let first = self.0.iter().enumerate().min_by_key(|(_, until)| **until);
        let (lane, until) = first.map_or((0, begin), |(lane, until)| (lane, *until));
        let from = until.min(end);
        self.0[lane] = until.max(end.saturating_add(APART));
        (lane, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_on_different_rows_and_what_follows_on_the_same() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.place(0, 100), (0, 0));
        assert_eq!(lanes.place(50, 150), (1, 50));
        assert_eq!(lanes.place(104, 120), (0, 104));
        assert_eq!(lanes.place(125, 126), (0, 125));
        assert_eq!(lanes.place(127, 128), (2, 127), "too near");
    }

    #[test]
    fn there_are_only_so_many_rows_and_what_has_none_is_shown_from_later_on() {
        let mut lanes = Lanes::default();
        (0..LANES_MAX as u64).for_each(|at| assert_eq!(lanes.place(at, 1000 + at), (at as usize, at)));
        assert_eq!(lanes.place(500, 2000), (0, 1004));
        assert_eq!(lanes.place(500, 600), (1, 600), "nothing of it can be shown");
    }
}
