//! The numbers of checks that passed and failed.

use std::ops::Add;

/// The numbers of checks that passed and that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests, and stages that are not made of tests, that passed.
    pub passed: usize,
    /// Tests, and stages that are not made of tests, that failed.
    pub failed: usize,
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

impl Tally {
    /// Reads a sum as the harness prints it.
    pub(super) fn of_sum(sum: &str) -> Self {
        let mut tally = Self::default();
        for part in sum.split([';', '.']) {
            let mut words = part.split_whitespace();
            if let (Some(Ok(count)), Some(kind)) = (words.next().map(str::parse::<usize>), words.next()) {
                match kind {
                    "passed" => tally.passed += count,
                    "failed" => tally.failed += count,
                    _ => {}
                }
            }
        }
        tally
    }
}
