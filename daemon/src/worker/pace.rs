//! This file decides how a ring's thread waits for its driver: for how long it spins, how often it looks while it dozes, and after what time it is idle,
//! so that the driver has to notify it. Learns from when work came; knows no ring.
//!
//! A notification is a way through the guest's kernel, the VMM and the device process. A program that submits some hundred times a second
//! shall need none of them, and one that has nothing to submit shall cost nothing.

use crate::spin::{self, Spun, are_few};
use std::sync::LazyLock;
use std::time::Duration;

/// The habits of one driver.
#[derive(Debug)]
pub(super) struct Pace {
    /// The driver wants to be able to go without notifications for so long. One that asks for no time at all gets none.
    asked: Duration,
    /// The time may be less for a driver that makes no use of it.
    least: Duration,
    spin: Duration,
    awake: Duration,
}

impl Pace {
    /// Makes the pace of a driver that asked for this idle time-out.
    pub(super) fn new(asked: Duration) -> Self {
        Self::among(are_few(), asked)
    }

    /// Makes the same, where processors are few or not.
    fn among(few: bool, asked: Duration) -> Self {
        let asked = asked.min(ASKED_MAX);
        let least = if few { asked.min(AWAKE_FEW) } else { asked };
        Self { asked, least, spin: SPIN_MIN, awake: asked }
    }

    /// Watches `done` for a moment, which is longer the more often that was worth it.
    pub(super) fn spin(&mut self, done: impl Fn() -> bool) -> bool {
        let spun = spin::within(self.spin, done);
        self.spin = match spun {
            Spun::Seen if self.asked.is_zero() => SPIN_MIN,
            Spun::Seen => (self.spin * 2).min(*SPIN_MAX),
            Spun::NotYet => (self.spin / 2).max(SPIN_MIN),
            Spun::Crowded => SPIN_MIN,
        };
        spun == Spun::Seen
    }

    /// Returns how long to doze before the next look, if `waited` has passed.
    pub(super) fn step(&self, waited: Duration) -> Duration {
        let (part, longest) = *STEPS;
        (waited / part).clamp(STEP_MIN, longest)
    }

    /// After what time without work to be idle.
    pub(super) fn awake(&self) -> Duration {
        self.awake
    }

    /// Work came after `waited`, and a notification with it.
    pub(super) fn was_notified(&mut self, waited: Duration) {
        self.awake = match waited <= AWAKE_MAX {
            true if self.asked.is_zero() => Duration::ZERO,
            true => (waited * LONGER).min(AWAKE_MAX).max(self.asked).max(self.awake),
            false => (self.awake / 2).max(self.least),
        };
    }
}

/// Longest time a ring stays awake without work, because its driver asks for it, and because it was worth it.
const ASKED_MAX: Duration = Duration::from_millis(100);
const AWAKE_MAX: Duration = Duration::from_millis(20);
/// The time for which it stays awake if it was not worth it, where processors are few: each look there takes one from somebody who computes, such as
/// a software driver. Long enough for the commands of one submission.
const AWAKE_FEW: Duration = Duration::from_micros(200);
/// The multiple of the pause after which a notification came, as the next one may be longer.
const LONGER: u32 = 4;

/// Shortest time between two looks at the tail while awake.
const STEP_MIN: Duration = Duration::from_micros(10);

/// The part of the pause so far that is slept until the next look, and for how long at most. What comes meanwhile is late by few percent of
/// the pause; looking takes few percent of a processor, which is too much where there are few.
static STEPS: LazyLock<(u32, Duration)> = LazyLock::new(|| match are_few() {
    true => (4, Duration::from_millis(1)),
    false => (16, Duration::from_micros(100)),
});

/// Shortest time to spin: about what it costs to be put to sleep and woken.
const SPIN_MIN: Duration = Duration::from_micros(20);

/// Longest: the gaps between submissions of programs that are busy. Where processors are few, others need them.
static SPIN_MAX: LazyLock<Duration> =
    LazyLock::new(|| Duration::from_micros(if are_few() { 40 } else { 320 }));

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_comes_often_needs_a_notification_once() {
        let mut pace = Pace::new(MS);
        assert_eq!(pace.awake(), MS);
        pace.was_notified(5 * MS);
        assert!(pace.awake() >= 5 * MS);
        // A pause is not held against the driver at once, and many are.
        pace.was_notified(25 * MS);
        assert!(pace.awake() >= 5 * MS);
        (0..10).for_each(|_| pace.was_notified(1000 * MS));
        assert!(pace.awake() <= MS);
    }

    #[test]
    fn short_pauses_in_between_keep_no_ring_awake_for_long() {
        let mut pace = Pace::new(MS);
        pace.was_notified(MS / 2);
        assert_eq!(pace.awake(), 2 * MS);
    }

    #[test]
    fn processors_that_are_few_are_not_kept_from_who_computes() {
        let (mut few, mut enough) = (Pace::among(true, MS), Pace::among(false, MS));
        assert_eq!((few.awake(), enough.awake()), (MS, MS));
        for pace in [&mut few, &mut enough] {
            (0..10).for_each(|_| pace.was_notified(50 * MS));
        }
        assert_eq!((few.awake(), enough.awake()), (AWAKE_FEW, MS));
        // What comes at shorter intervals has the time it asked for at once.
        few.was_notified(AWAKE_FEW);
        assert_eq!(few.awake(), MS);
    }

    #[test]
    fn a_ring_is_awake_as_long_as_its_driver_asked_within_reason() {
        let mut pace = Pace::among(false, 50 * MS);
        (0..10).for_each(|_| pace.was_notified(1000 * MS));
        assert_eq!(pace.awake(), 50 * MS);
        assert_eq!(Pace::new(Duration::MAX).awake(), ASKED_MAX);
    }

    #[test]
    fn who_asks_for_no_time_is_notified_always() {
        let mut pace = Pace::new(Duration::ZERO);
        for _ in 0..10 {
            assert!(pace.spin(|| true));
            pace.was_notified(MS);
        }
        assert_eq!((pace.spin, pace.awake()), (SPIN_MIN, Duration::ZERO));
    }

    #[test]
    fn spinning_that_is_of_no_use_gets_shorter() {
        let mut pace = Pace::new(MS);
        for _ in 0..10 {
            assert!(pace.spin(|| true));
        }
        assert_eq!(pace.spin, *SPIN_MAX);
        for _ in 0..10 {
            assert!(!pace.spin(|| false));
        }
        assert_eq!(pace.spin, SPIN_MIN);
    }
}
