//! The reason why something is not handed over, and whether it passes.

/// The reason why a context, or a VM, is not handed over.
#[derive(Debug)]
pub(in crate::serve) struct Failure {
    pub(in crate::serve) reason: String,
    /// The reason may be gone in a moment.
    pub(in crate::serve) for_now: bool,
}

impl<T: Into<String>> From<T> for Failure {
    fn from(reason: T) -> Self {
        Self { reason: reason.into(), for_now: false }
    }
}

impl Failure {
    pub(in crate::serve) fn for_now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), for_now: true }
    }
}
