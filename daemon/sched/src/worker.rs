//! The words between the scheduler and the workers: a worker's totals and spans, and the orders that it gets.

use super::{ContextKey, Nanos};

/// What a worker says of its submissions. It is not trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Submissions that could be dispatched now and are not, granted or not.
    pub ready: u32,
    /// Submissions dispatched since the context began, wrapping.
    pub dispatched: u32,
    /// Submissions completed since the context began, wrapping.
    pub completed: u32,
}

/// GPU work that completed, as a worker measured it. It is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it began, by the clock that the scheduler is told.
    pub begin: Nanos,
    /// When it ended.
    pub end: Nanos,
    /// For how long of that it was busy, in nanoseconds.
    pub busy: Nanos,
    /// Submissions in it.
    pub count: u32,
    /// Whether it was done by a copy engine, beside what computes.
    pub copy: bool,
}

/// What a worker is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It may dispatch more.
    Grant {
        /// Whose worker.
        context: ContextKey,
        /// Dispatches that it may have made since it began, wrapping.
        total: u32,
    },
    /// It need not ask any more.
    Lease(ContextKey),
    /// It has to ask again.
    Revoke(ContextKey),
}
