//! The time for which submissions of a tenant held the GPU although its workers report no work for it. A little of that time is no fault of the
//! workers: the GPU has to start the work, switches between contexts, and reports the end late. Claims that leave more unexplained are false: the
//! scheduler charges their tenant for the rest. This file knows no tenants.

use super::time::scaled;
use super::{Nanos, Tuning};

/// The benefit of the doubt that a tenant has.
#[derive(Debug)]
pub(super) struct Doubt {
    /// Time that its workers may leave unexplained.
    left: Nanos,
}

impl Doubt {
    pub(super) fn new(tuning: &Tuning) -> Self {
        Self { left: tuning.doubt_saved }
    }

    /// Notes that submissions held the GPU for so long.
    pub(super) fn earns(&mut self, held: Nanos, tuning: &Tuning) {
        self.left = self.left.saturating_add(scaled(held, tuning.doubt)).min(tuning.doubt_saved);
    }

    /// Returns whether to believe that submissions which held the GPU for the time `held` worked for no more than `claimed`. A claim above the held
    /// time makes up for an earlier claim below it: the worker hears of completions late, so one submission seems longer and the next one shorter.
    pub(super) fn believes(&mut self, held: Nanos, claimed: Nanos, tuning: &Tuning) -> bool {
        let Some(left) = self.left.checked_sub(held.saturating_sub(claimed)) else { return false };
        self.left = left.saturating_add(claimed.saturating_sub(held)).min(tuning.doubt_saved);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::time::MILLISECOND;
    use super::*;

    #[test]
    fn what_is_left_unexplained_is_a_part_of_what_was_held() {
        let tuning = Tuning::default();
        let mut doubt = Doubt::new(&tuning);
        let mut saved = 0;
        for _ in 0..1000 {
            doubt.earns(2 * MILLISECOND, &tuning);
            saved += if doubt.believes(2 * MILLISECOND, 0, &tuning) { 2 * MILLISECOND } else { 0 };
        }
        assert!(saved <= scaled(2000 * MILLISECOND, tuning.doubt) + tuning.doubt_saved, "{saved}");
    }

    #[test]
    fn what_is_heard_of_late_makes_up_for_itself() {
        let tuning = Tuning { doubt: 0.0, doubt_saved: MILLISECOND, ..Tuning::default() };
        let mut doubt = Doubt::new(&tuning);
        for _ in 0..1000 {
            assert!(doubt.believes(3 * MILLISECOND, 2 * MILLISECOND, &tuning));
            assert!(doubt.believes(MILLISECOND, 2 * MILLISECOND, &tuning));
        }
    }
}
