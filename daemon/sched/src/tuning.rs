//! The constants of the scheduler, with their reasons.

use super::Nanos;
use super::time::{MICROSECOND, MILLISECOND, SECOND};

/// Constants of a [`Scheduler`](super::Scheduler). Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// The time that a submission of a context which has completed none is expected to take. Default 200 us.
    pub first_estimate: Nanos,
    /// A second unit goes to the driver when the first is expected to end within this time, so that the way to the driver costs no idle time. With a
    /// shorter time, urgent work that arrives meanwhile comes first. Half of this on a GPU that time-slices, which would switch between the two.
    /// Default 0.5 ms.
    pub stage_within: Nanos,
    /// A second unit also goes to the driver when this part of the first is expected to be left, because estimates err in proportion. This does not
    /// apply while a latency tenant is active, or on a GPU that time-slices. Default 0.2.
    pub stage_part: f64,
    /// The most estimated time of submissions that are granted together. Default 1 ms.
    pub bundle: Nanos,
    /// Only submissions with an estimate below this are granted together. Default 200 us.
    pub bundle_below: Nanos,
    /// The scheduler stays with a context for so much GPU time beyond its turn, which saves the GPU switches; for less time if there
    /// are many tenants. Default 4 ms.
    pub affinity: Nanos,
    /// GPU time that a tenant may catch up on after it had no work. Default 1 ms.
    pub credit: Nanos,
    /// The credit of a tenant of class [`Latency`](super::Class::Latency). Default 5 ms.
    pub credit_latency: Nanos,
    /// A tenant that was without work for at most this time may catch up on the time by which it was behind before, or that others got meanwhile: up
    /// to [`Self::credit_paused`]. Default 5 ms.
    pub pause: Nanos,
    /// The most GPU time that a tenant may catch up on after such a pause. Default 50 ms.
    pub credit_paused: Nanos,
    /// The part of the time that the GPU may idle while the scheduler waits for contexts that submit again at once. Default 0.08.
    pub anticipation: f64,
    /// GPU time that each submission is charged at least. Default 10 us.
    pub floor: Nanos,
    /// The time from the end of a unit until the next begins, if the next could not be staged meanwhile. It is added to the charge of a unit that is
    /// charged by the time for which it held the GPU. Default 60 us.
    pub start: Nanos,
    /// The time over which ceilings hold. Default 100 ms.
    pub window: Nanos,
    /// A context that was alone for so long need not ask any more. Default 20 ms.
    pub lease_after: Nanos,
    /// The time instead of [`Self::lease_after`] if a latency tenant had work within [`Self::latency_memory`]. Default 1 s.
    pub lease_after_latency: Nanos,
    /// A worker may go on for so long as if it had its lease, because it has not noticed that the lease was revoked. Default 1 s.
    pub revoke_grace: Nanos,
    /// A unit that runs for so long beyond four times its estimate is overdue, and holds no place any more. On a GPU that time-slices, a unit that
    /// runs for so long has another unit staged beside it. Default 50 ms.
    pub overdue: Nanos,
    /// The scheduler reckons with a latency tenant for so long after it had work. Default 1 s.
    pub latency_memory: Nanos,
    /// A GPU that time-slices contexts runs a context for so long before it switches, so the first and the last slice of a span are the context's own.
    /// Default 1 ms.
    pub slice: Nanos,
    /// Clocks may differ by so much. A span that ends later than now by more than this is not believed. Default 1 ms.
    pub clock_error: Nanos,
    /// The part of the time for which a tenant's submissions held the GPU that its workers may leave unexplained. With a smaller part, workers that a
    /// guest has taken over gain less; with a larger one, workers are blamed less for a slow host. Default 0.125.
    pub doubt: f64,
    /// The most unexplained time that a tenant saves up, and the amount that it begins with. Default 10 ms.
    pub doubt_saved: Nanos,
    /// The most estimated time of urgent submissions in the driver, beside other work there. Default 4 ms.
    pub lane: Nanos,
    /// A span may come so long after the completion that it belongs to. Default 100 ms.
    pub late_span: Nanos,
    /// Each context has a lease from begin to end: the GPU's time is measured, but not shared out. Default false.
    pub leases_for_all: bool,
}

impl Tuning {
    /// Returns the constants for a software driver: the system divides the processors between the contexts in the driver, and one context alone
    /// leaves them idle now and then. So there are always two units, of different contexts if possible, and the scheduler does not wait for a context.
    #[must_use]
    pub fn software() -> Self {
        Self { stage_within: 100 * SECOND, affinity: 0, anticipation: 0.0, ..Self::default() }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            first_estimate: 200 * MICROSECOND,
            stage_within: 500 * MICROSECOND,
            stage_part: 0.2,
            bundle: MILLISECOND,
            bundle_below: 200 * MICROSECOND,
            affinity: 4 * MILLISECOND,
            credit: MILLISECOND,
            credit_latency: 5 * MILLISECOND,
            pause: 5 * MILLISECOND,
            credit_paused: 50 * MILLISECOND,
            anticipation: 0.08,
            floor: 10 * MICROSECOND,
            start: 60 * MICROSECOND,
            window: 100 * MILLISECOND,
            lease_after: 20 * MILLISECOND,
            lease_after_latency: SECOND,
            revoke_grace: SECOND,
            overdue: 50 * MILLISECOND,
            latency_memory: SECOND,
            slice: MILLISECOND,
            clock_error: MILLISECOND,
            doubt: 0.125,
            doubt_saved: 10 * MILLISECOND,
            lane: 4 * MILLISECOND,
            late_span: 100 * MILLISECOND,
            leases_for_all: false,
        }
    }
}
