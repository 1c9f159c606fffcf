//! Hands out parts of an address range: guest memory for requests, window offsets for blobs.
//!
//! Knows nothing of the contents at the addresses. The search is first fit, so that freed ranges are used again at once, as the Linux driver's
//! `drm_mm` does with the host-visible window.

use std::collections::BTreeMap;

/// Free parts of `[start, start + len)`, in units of `align` bytes.
#[derive(Clone, Debug)]
pub struct Ranges {
    free: BTreeMap<u64, u64>,
    align: u64,
}

impl Ranges {
    /// Everything in `[start, start + len)` is free. `align` is a power of two; lengths are rounded up to it.
    pub fn new(start: u64, len: u64, align: u64) -> Self {
        assert!(align.is_power_of_two() && start.is_multiple_of(align), "ranges start aligned");
        Self { free: BTreeMap::from([(start, len - len % align)]), align }
    }

    /// Takes the lowest free range of at least `len` bytes; `None` when no gap is large enough.
    pub fn allocate(&mut self, len: u64) -> Option<u64> {
        let len = self.round(len);
        let (&start, &gap) = self.free.iter().find(|&(_, &gap)| gap >= len)?;
        self.free.remove(&start);
        if gap > len {
            self.free.insert(start + len, gap - len);
        }
        Some(start)
    }

    /// Frees the range that `allocate(len)` returned as `start`.
    pub fn release(&mut self, start: u64, len: u64) {
        let mut start = start;
        let mut len = self.round(len);
        if let Some((&before, &gap)) = self.free.range(..start).next_back() {
            assert!(before + gap <= start, "a range is given back once");
            if before + gap == start {
                self.free.remove(&before);
                start = before;
                len += gap;
            }
        }
        if let Some(gap) = self.free.remove(&(start + len)) {
            len += gap;
        }
        self.free.insert(start, len);
    }

    /// Bytes that are free, in all gaps together.
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    fn round(&self, len: u64) -> u64 {
        len.max(1).next_multiple_of(self.align)
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn released_neighbours_merge_into_one_gap() {
        let mut ranges = Ranges::new(0x1000, 0x4000, 0x1000);
        let all: Vec<u64> = (0..4).map(|_| ranges.allocate(1).unwrap()).collect();
        assert_eq!(all, [0x1000, 0x2000, 0x3000, 0x4000]);
        assert_eq!(ranges.allocate(1), None);
        for start in [0x2000, 0x4000, 0x3000, 0x1000] {
            ranges.release(start, 1);
        }
        assert_eq!(ranges.allocate(0x4000), Some(0x1000));
    }

    #[test]
    fn lowest_fitting_gap_is_taken_first() {
        let mut ranges = Ranges::new(0, 0x10000, 0x1000);
        let first = ranges.allocate(0x3000).unwrap();
        let _second = ranges.allocate(0x1000).unwrap();
        ranges.release(first, 0x3000);
        assert_eq!(ranges.allocate(0x1000), Some(0));
        assert_eq!(ranges.allocate(0x3000), Some(0x4000));
        assert_eq!(ranges.free_bytes(), 0x10000 - 0x5000);
    }
}
