//! The messages between the scheduler and the workers: a worker's totals and spans, and the orders that it gets.

use super::{ContextKey, Nanos};

/// The totals that a worker reports of its submissions. They are not trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Submissions that could be dispatched now but are not, whether granted or not.
    pub ready: u32,
    /// Submissions dispatched since the context began, wrapping.
    pub dispatched: u32,
    /// Submissions completed since the context began, wrapping.
    pub completed: u32,
}

/// GPU work that completed, as a worker measured it. The scheduler does not trust it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The begin, by the clock whose time the scheduler gets.
    pub begin: Nanos,
    /// The end, by the same clock.
    pub end: Nanos,
    /// The part of that time in which the GPU was busy, in nanoseconds.
    pub busy: Nanos,
    /// The number of submissions.
    pub count: u32,
    /// True if a copy engine did the work, beside the computing engine.
    pub copy: bool,
}

/// An instruction to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The worker may dispatch more.
    Grant {
        /// The context whose worker may dispatch.
        context: ContextKey,
        /// Dispatches that it may have made since it began, wrapping.
        total: u32,
    },
    /// The worker need not ask any more.
    Lease(ContextKey),
    /// The worker has to ask again.
    Revoke(ContextKey),
}
