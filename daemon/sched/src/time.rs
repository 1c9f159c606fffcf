//! Time, in nanoseconds.

/// A point in time, or a time, in nanoseconds.
pub type Nanos = u64;

pub(super) const MICROSECOND: Nanos = 1_000;
pub(super) const MILLISECOND: Nanos = 1_000_000;
pub(super) const SECOND: Nanos = 1_000_000_000;

/// `time * factor`.
pub(super) fn scaled(time: Nanos, factor: f64) -> Nanos {
    // A conversion from floating point saturates.
    (time as f64 * factor) as Nanos
}
