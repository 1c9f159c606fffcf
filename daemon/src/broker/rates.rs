//! Computes the busy part of the last second, from a counter of nanoseconds that is read now and then.

use std::collections::VecDeque;

/// The time over which a rate is computed, in nanoseconds.
pub(super) const PERIOD: u64 = 1_000_000_000;
/// Least time between two samples.
const STEP: u64 = 100_000_000;

/// Samples of one counter, not much older than [`PERIOD`].
#[derive(Debug, Default)]
pub(super) struct Rate {
    /// Pairs of a time and the counter at that time.
    samples: VecDeque<(u64, u64)>,
}

impl Rate {
    /// Takes a sample, unless the last one is fresh. The caller calls this before the counter rises, so that it has not risen between the last sample
    /// and this one.
    pub(super) fn sample(&mut self, now: u64, counter: u64) {
        if self.samples.back().is_some_and(|(last, _)| now.saturating_sub(*last) < STEP) {
            return;
        }
        self.samples.push_back((now, counter));
        // One sample that is older than the period is kept, to know the counter at the beginning of the period.
        while self.samples.get(1).is_some_and(|(second, _)| now.saturating_sub(*second) > PERIOD) {
            self.samples.pop_front();
        }
    }

    /// Returns the rise of the counter in the last second as a part of this second. It is at most 1: a longer piece of work counts when it is over.
    pub(super) fn over_last_second(&self, now: u64, counter: u64) -> f64 {
        let begin = now.saturating_sub(PERIOD);
        let before = self.at(begin).unwrap_or(counter);
        (counter.saturating_sub(before) as f64 / PERIOD as f64).min(1.0)
    }

    /// Returns the counter at a time, between two samples in proportion.
    fn at(&self, when: u64) -> Option<u64> {
        let after = self.samples.iter().position(|(at, _)| *at > when);
        match after {
            None => self.samples.back().map(|(_, counter)| *counter),
            // A counter that began later was 0 before.
            Some(0) => self.samples.front().map(|(_, counter)| *counter),
            Some(index) => {
                let ((from, low), (to, high)) = (self.samples[index - 1], self.samples[index]);
                // The counter of a VM that uses the GPU is read often, so the use began soon after the first of the two samples.
                let to = to.min(from + 2 * STEP);
                let part = ((when - from) as f64 / (to - from) as f64).min(1.0);
                Some(low + (high.saturating_sub(low) as f64 * part) as u64)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn half_of_the_time_is_half_whenever_one_asks() {
        let mut rate = Rate::default();
        for step in 0..100 {
            rate.sample(step * 110 * MS, step * 55 * MS);
            assert!(rate.samples.len() <= 12);
        }
        for later in [0, 50, 90] {
            let now = 99 * 110 + later;
            let share = rate.over_last_second(now * MS, now * MS / 2);
            assert!((share - 0.5).abs() < 0.01, "{later}: {share}");
        }
    }

    #[test]
    fn what_was_long_ago_does_not_count_and_a_burst_counts_for_a_second() {
        let mut rate = Rate::default();
        rate.sample(0, 0);
        rate.sample(5000 * MS, 300 * MS);
        assert_eq!(rate.over_last_second(5100 * MS, 300 * MS), 0.3 - 0.3);
        assert_eq!(rate.over_last_second(5100 * MS, 500 * MS), 0.2);
        assert_eq!(rate.over_last_second(9000 * MS, 500 * MS), 0.2, "not sampled since");
        assert_eq!(Rate::default().over_last_second(5 * MS, 7), 0.0);
    }
}
