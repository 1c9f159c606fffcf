//! The scheduler learns the time that a program takes from its last result to its next submission, and the time for which a wait for that program
//! pays. This file knows no tenants and no clock.

use super::Nanos;
use super::time::MICROSECOND;

/// Gaps in which a context had no work, by their length, and the work that it did between two gaps.
#[derive(Clone, Debug, Default)]
pub(super) struct Habit {
    /// Gaps up to each of [`Habit::bounds`], with more weight on later gaps.
    gaps: [u32; BINS],
    /// The count of longer gaps.
    longer: u32,
    /// GPU time between two gaps, on average.
    burst: Option<Nanos>,
}

impl Habit {
    /// Notes that the context submitted again after this gap, and the GPU time that it had used since the gap before.
    pub(super) fn note(&mut self, gap: Nanos, burst: Nanos) {
        self.gaps.iter_mut().chain([&mut self.longer]).for_each(|count| *count -= *count / MEMORY);
        let bin = Self::bounds().position(|bound| gap <= bound);
        let count = bin.and_then(|bin| self.gaps.get_mut(bin)).unwrap_or(&mut self.longer);
        *count += GAP;
        self.burst = Some(self.burst.map_or(burst, |average| average - average / 4 + burst / 4));
    }

    /// Returns whether there were gaps at all; a program that always has a submission has none.
    pub(super) fn is_known(&self) -> bool {
        self.burst.is_some()
    }

    /// Returns the time for which to wait for the context, if a wait is worth while: a longer wait would cost more than the work that the context
    /// submits when it comes. Returns none if that work is too short for the time of the wait.
    pub(super) fn limit(&self) -> Option<Nanos> {
        let burst = self.burst?;
        let all = self.gaps.iter().copied().chain([self.longer]).map(u64::from).sum::<u64>();
        let (mut came, mut shorter) = (0u64, 0u64);
        let limits = Self::bounds().zip(self.gaps).map(|(bound, count)| {
            let count = u64::from(count);
            came += count;
            // Halfway between the ends of its bin.
            shorter = shorter.saturating_add(count.saturating_mul(bound - bound / 6));
            let waited = shorter.saturating_add((all - came).saturating_mul(bound));
            (i128::from(came) * i128::from(burst) - i128::from(waited), came, waited, bound)
        });
        let (_, came, waited, bound) =
            limits.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
        (waited.checked_div(came)? <= burst / WORTH).then_some(bound)
    }

    /// Returns the upper ends of the bins: 50 us, and then each 1.5 times the one before.
    fn bounds() -> impl Iterator<Item = Nanos> {
        std::iter::successors(Some(50 * MICROSECOND), |bound| Some(bound + bound / 2)).take(BINS)
    }
}

/// The bins distinguish gaps up to 0.85 ms; the scheduler does not wait for longer ones.
const BINS: usize = 8;
/// The count that a gap adds when it is noted; each later gap takes away a part of this count.
const GAP: u32 = 1 << 16;
const MEMORY: u32 = 32;
/// A wait may take one part in this many of the work that follows.
const WORTH: Nanos = 2;

#[cfg(test)]
mod tests {
    use super::super::time::MILLISECOND;
    use super::*;

    fn habit(gaps: impl IntoIterator<Item = Nanos>, burst: Nanos) -> Habit {
        let mut habit = Habit::default();
        gaps.into_iter().for_each(|gap| habit.note(gap, burst));
        habit
    }

    #[test]
    fn short_gaps_are_waited_for_and_no_longer_than_they_are() {
        let regular = habit((0..50).map(|n| (200 + n % 7 * 10) * MICROSECOND), 2 * MILLISECOND);
        assert_eq!(regular.limit(), Some(379_687));
        // One gap in ten is long, and not worth waiting for.
        let mostly =
            habit((0..50).map(|n| if n % 10 == 0 { 5000 } else { 200 } * MICROSECOND), 2 * MILLISECOND);
        assert_eq!(mostly.limit(), Some(253_125));
        // Some gaps are longer than others, and all are short.
        let spread = habit((0..64).map(|n| [60, 120, 200, 550][n % 4] * MICROSECOND), 2 * MILLISECOND);
        assert_eq!(spread.limit(), Some(569_530));
    }

    #[test]
    fn what_is_long_for_what_follows_or_cannot_be_foreseen_is_not_waited_for() {
        assert_eq!(Habit::default().limit(), None);
        assert_eq!(habit([200 * MICROSECOND; 20], 300 * MICROSECOND).limit(), None);
        assert_eq!(habit([5 * MILLISECOND; 20], 100 * MILLISECOND).limit(), None);
        let any = habit((0..200).map(|n| n * 7919 % 20_000 * MICROSECOND), 2 * MILLISECOND);
        assert_eq!(any.limit(), None);
    }

    #[test]
    fn a_new_habit_takes_the_place_of_an_old_one() {
        let mut habit = habit([200 * MICROSECOND; 500], 2 * MILLISECOND);
        (0..80).for_each(|_| habit.note(3 * MILLISECOND, 2 * MILLISECOND));
        assert_eq!(habit.limit(), None);
        (0..160).for_each(|_| habit.note(100 * MICROSECOND, 2 * MILLISECOND));
        assert!(habit.limit().is_some_and(|limit| limit <= 253_125), "{habit:?}");
    }
}
