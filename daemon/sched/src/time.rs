//! Time, in nanoseconds.

use std::time::Duration;

/// A point in time, or a time, in nanoseconds.
pub type Nanos = u64;

pub(super) const MICROSECOND: Nanos = 1_000;
pub(super) const MILLISECOND: Nanos = 1_000_000;
pub(super) const SECOND: Nanos = 1_000_000_000;

/// Returns a time in nanoseconds, or the longest time if that many do not fit.
#[must_use]
pub fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

/// `time * factor`.
pub(super) fn scaled(time: Nanos, factor: f64) -> Nanos {
    // A conversion from floating point saturates.
    (time as f64 * factor) as Nanos
}
