//! A snapshot, or the reason why there is none.

use super::step::Step;
use crate::context::allowance::MemoryFile;
use std::sync::Arc;

/// A snapshot.
#[derive(Debug, Default)]
pub struct Saved {
    /// The steps that a successor does, in this order.
    pub steps: Vec<Step>,
    /// The memory files that [`Step::Memory`] names by their index, each once.
    pub files: Vec<Arc<MemoryFile>>,
}

/// The reason why a context cannot be taken apart and built up elsewhere, for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NotMovable {
    /// In words of ours: "the driver holds memory that cannot be given away".
    pub reason: String,
    /// True if it may be otherwise in a moment, for the program alone decides it.
    pub for_now: bool,
}

impl NotMovable {
    /// A reason that lasts.
    pub fn ever(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), for_now: false }
    }

    /// A reason that may be gone in a moment.
    pub fn for_now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), for_now: true }
    }
}
