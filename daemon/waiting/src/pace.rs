//! This file decides how a ring's thread waits for its driver: how long it spins, how often it looks while it dozes, and after what time it goes
//! idle, so that the driver has to notify it. It learns from the times at which work came, and knows no ring.
//!
//! A notification passes through the guest's kernel, the VMM and the device process. A program that submits some hundred times a second should need
//! no notification, and a program without submissions should cost nothing.

use super::spin::{self, Spun};
use super::tunables::PaceTunables;
use std::time::Duration;

/// The habits of one driver.
#[derive(Debug)]
pub struct Pace {
    /// The time for which the driver wants to go without notifications. A driver that asks for no time gets none.
    asked: Duration,
    /// The shorter time that a driver gets if it does not use the longer one.
    least: Duration,
    spin: Duration,
    awake: Duration,
    tunables: PaceTunables,
}

impl Pace {
    /// Makes the pace of a driver that asked for this idle time-out.
    #[must_use]
    pub fn new(asked: Duration, tunables: PaceTunables) -> Self {
        let asked = asked.min(tunables.asked_max);
        Self { asked, least: asked.min(tunables.awake_min), spin: tunables.spin_min, awake: asked, tunables }
    }

    /// Watches `done` for a moment, which is longer the more often it was worth it.
    pub fn spin(&mut self, done: impl Fn() -> bool) -> bool {
        let spun = spin::within(self.spin, done);
        let PaceTunables { spin_min, spin_max, .. } = self.tunables;
        self.spin = match spun {
            Spun::Seen if self.asked.is_zero() => spin_min,
            Spun::Seen => (self.spin * 2).min(spin_max),
            Spun::NotYet => (self.spin / 2).max(spin_min),
            Spun::Crowded => spin_min,
        };
        spun == Spun::Seen
    }

    /// Returns the time to doze before the next look, after a wait of `waited`.
    pub fn step(&self, waited: Duration) -> Duration {
        let PaceTunables { step_part, step_min, step_max, .. } = self.tunables;
        (waited / step_part).clamp(step_min, step_max)
    }

    /// Returns the time without work after which the thread is idle.
    pub fn awake(&self) -> Duration {
        self.awake
    }

    /// Learns that work came after `waited`, with a notification.
    pub fn was_notified(&mut self, waited: Duration) {
        let PaceTunables { awake_max, longer, .. } = self.tunables;
        self.awake = match waited <= awake_max {
            true if self.asked.is_zero() => Duration::ZERO,
            true => (waited * longer).min(awake_max).max(self.asked).max(self.awake),
            false => (self.awake / 2).max(self.least),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Heuristic, Tunables};

    const MS: Duration = Duration::from_millis(1);

    fn among(processors: usize, asked: Duration) -> Pace {
        Pace::new(asked, Tunables::among(processors).pace)
    }

    #[test]
    fn who_comes_often_needs_a_notification_once() {
        let mut pace = among(4, MS);
        assert_eq!(pace.awake(), MS);
        pace.was_notified(5 * MS);
        assert!(pace.awake() >= 5 * MS);
        // One pause does not count against the driver, but many do.
        pace.was_notified(25 * MS);
        assert!(pace.awake() >= 5 * MS);
        (0..10).for_each(|_| pace.was_notified(1000 * MS));
        assert!(pace.awake() <= MS);
    }

    #[test]
    fn short_pauses_in_between_keep_no_ring_awake_for_long() {
        let mut pace = among(4, MS);
        pace.was_notified(MS / 2);
        assert_eq!(pace.awake(), 2 * MS);
    }

    #[test]
    fn processors_that_are_few_are_not_kept_from_who_computes() {
        let (mut few, mut enough) = (among(3, MS), among(4, MS));
        assert_eq!((few.awake(), enough.awake()), (MS, MS));
        for pace in [&mut few, &mut enough] {
            (0..10).for_each(|_| pace.was_notified(50 * MS));
        }
        assert_eq!((few.awake(), enough.awake()), (MS / 5, MS));
        // A driver whose work comes at shorter intervals gets the time that it asked for at once.
        few.was_notified(MS / 5);
        assert_eq!(few.awake(), MS);
    }

    #[test]
    fn a_ring_is_awake_as_long_as_its_driver_asked_within_reason() {
        let mut pace = among(4, 50 * MS);
        (0..10).for_each(|_| pace.was_notified(1000 * MS));
        assert_eq!(pace.awake(), 50 * MS);
        assert_eq!(among(4, Duration::MAX).awake(), 100 * MS);
    }

    #[test]
    fn who_asks_for_no_time_is_notified_always() {
        let mut pace = among(4, Duration::ZERO);
        for _ in 0..10 {
            assert!(pace.spin(|| true));
            pace.was_notified(MS);
        }
        assert_eq!((pace.spin, pace.awake()), (pace.tunables.spin_min, Duration::ZERO));
    }

    #[test]
    fn spinning_that_is_of_no_use_gets_shorter() {
        let mut pace = among(4, MS);
        for _ in 0..10 {
            assert!(pace.spin(|| true));
        }
        assert_eq!(pace.spin, pace.tunables.spin_max);
        for _ in 0..10 {
            assert!(!pace.spin(|| false));
        }
        assert_eq!(pace.spin, pace.tunables.spin_min);
    }

    #[test]
    fn a_pace_that_does_not_learn_spins_for_no_time_and_is_awake_as_its_driver_asked() {
        let mut pace = Pace::new(MS, Tunables::among(4).without(Heuristic::Pace).pace);
        for waited in [MS / 10, 5 * MS, 50 * MS] {
            pace.spin(|| true);
            pace.was_notified(waited);
            assert_eq!((pace.spin, pace.awake()), (Duration::ZERO, MS));
        }
    }
}
