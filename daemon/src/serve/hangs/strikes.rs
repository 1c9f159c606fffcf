//! Holds a VM back whose contexts have to be killed again and again: it may not start new ones for a while.
//!
//! Knows no clock: time is passed in. Strikes survive the VM's reset, or a guest would get rid of them by restarting.

use config::HangLimits;
use std::time::{Duration, Instant};

/// The strikes of one VM.
#[derive(Debug)]
pub(in crate::serve) struct Strikes {
    limits: HangLimits,
    count: u32,
    /// The time at which the last strike was counted or forgiven.
    changed: Option<Instant>,
    held_until: Option<Instant>,
}

impl Strikes {
    /// Makes the record of a VM that has no strikes yet.
    pub(in crate::serve) fn new(limits: HangLimits) -> Self {
        Self { limits, count: 0, changed: None, held_until: None }
    }

    /// A context was killed. Answers for how long there will be no new ones, if so.
    pub(in crate::serve) fn strike(&mut self, now: Instant) -> Option<Duration> {
        self.forgive(now);
        self.count = self.count.saturating_add(1);
        self.changed = Some(now);
        let beyond = self.count.checked_sub(self.limits.strikes)?;
        let factor = 1u32.checked_shl(beyond).unwrap_or(u32::MAX);
        let hold = self.limits.strike_hold.saturating_mul(factor).min(self.limits.strike_hold_max);
        self.held_until = Some(now + hold);
        Some(hold)
    }

    /// Returns for how much longer there are no new contexts.
    pub(in crate::serve) fn held(&self, now: Instant) -> Option<Duration> {
        let left = self.held_until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    fn forgive(&mut self, now: Instant) {
        let Some(changed) = self.changed else { return };
        let since = now.saturating_duration_since(changed).as_secs_f64();
        let forgiven = (since / self.limits.strike_forgiven.as_secs_f64()) as u32;
        self.count = self.count.saturating_sub(forgiven);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> HangLimits {
        HangLimits {
            strikes: 3,
            strike_hold: 10 * SECOND,
            strike_hold_max: 60 * SECOND,
            strike_forgiven: 300 * SECOND,
            ..HangLimits::default()
        }
    }

    #[test]
    fn some_are_free_then_each_costs_twice_as_much_up_to_a_limit() {
        let (mut strikes, now) = (Strikes::new(limits()), Instant::now());
        let holds: Vec<_> = (0..7).map(|_| strikes.strike(now).map(|hold| hold.as_secs())).collect();
        assert_eq!(holds, [None, None, Some(10), Some(20), Some(40), Some(60), Some(60)]);
        assert_eq!(strikes.held(now + 59 * SECOND), Some(SECOND));
        assert_eq!(strikes.held(now + 60 * SECOND), None);
    }

    #[test]
    fn strikes_are_forgiven_one_by_one() {
        let (mut strikes, mut now) = (Strikes::new(limits()), Instant::now());
        for _ in 0..100 {
            assert_eq!(strikes.strike(now), None);
            now += 300 * SECOND;
        }
        now += 3000 * SECOND;
        assert_eq!((strikes.strike(now), strikes.strike(now)), (None, None));
        assert_eq!(strikes.strike(now), Some(10 * SECOND));
        now += 600 * SECOND;
        assert_eq!(strikes.strike(now), None);
        assert_eq!(strikes.strike(now), Some(10 * SECOND));
    }

    #[test]
    fn thousands_of_strikes_overflow_nothing() {
        let (mut strikes, now) = (Strikes::new(limits()), Instant::now());
        let last = (0..5000).map(|_| strikes.strike(now)).last();
        assert_eq!(last, Some(Some(60 * SECOND)));
    }
}
