//! Deterministic randomness for tests with hostile input: the same seed, the same bytes, on every machine.

use crate::program::variable;
use std::ops::RangeBounds;

/// SplitMix64: small, fast, and good enough to find bugs with.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that `seed` determines completely.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// True once in `of` times.
    pub fn once_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// One of the choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.word().to_le_bytes()).take(len).collect()
    }

    /// A number as attackers choose them: small, a power of two, a limit, or anything.
    pub fn nasty(&mut self) -> u64 {
        let word = self.word();
        match self.below(8) {
            0..=2 => word % 16,
            3 => 1 << (word % 64),
            4 => (1_u64 << (word % 64)).wrapping_sub(1),
            5 => u64::MAX - word % 16,
            6 => u64::from(u32::MAX) - word % 16,
            _ => word,
        }
    }

    /// Changes a few dwords of `bytes` within `range`, or cuts or lengthens them.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>, range: impl RangeBounds<usize>) {
        let end = match range.end_bound() {
            std::ops::Bound::Included(&end) => end + 1,
            std::ops::Bound::Excluded(&end) => end,
            std::ops::Bound::Unbounded => bytes.len(),
        };
        let start = match range.start_bound() {
            std::ops::Bound::Included(&start) | std::ops::Bound::Excluded(&start) => start,
            std::ops::Bound::Unbounded => 0,
        };
        for _ in 0..=self.below(3) {
            let dwords = (end.min(bytes.len()) / 4).saturating_sub(start.div_ceil(4));
            match self.below(10) {
                0 => bytes.truncate(self.below(bytes.len() as u64 + 1) as usize),
                1 => {
                    let len = self.below(64) as usize;
                    bytes.extend(self.bytes(len));
                }
                2 if !bytes.is_empty() => {
                    let at = self.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << self.below(8);
                }
                _ if dwords > 0 => {
                    let at = (start.div_ceil(4) + self.below(dwords as u64) as usize) * 4;
                    let value = self.nasty() as u32;
                    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                }
                _ => {}
            }
        }
    }
}

/// A number of repetitions, scaled by `HOSTILE_PERCENT` (100 unless set).
pub fn repetitions(full: u64) -> u64 {
    let percent = variable::number("HOSTILE_PERCENT").expect("a percentage").unwrap_or(100);
    (full * percent / 100).max(1)
}
