//! The reason why something is not handed over, and how long it lasts.

/// The reason why a context, or a VM, is not handed over.
#[derive(Debug)]
pub(in crate::serve) struct Failure {
    pub(in crate::serve) reason: String,
    pub(in crate::serve) lasts: Lasts,
}

/// The time for which a reason lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Lasts {
    /// It may be gone in a moment: the log tells operators of it only if one has asked.
    ForNow,
    /// Until operators or other programs of the host do something about it.
    UntilMended,
    /// As long as the context is what it is.
    ForGood,
}

impl<T: Into<String>> From<T> for Failure {
    fn from(reason: T) -> Self {
        Self { reason: reason.into(), lasts: Lasts::ForGood }
    }
}

impl Failure {
    pub(in crate::serve) fn for_now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), lasts: Lasts::ForNow }
    }

    pub(in crate::serve) fn until_mended(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), lasts: Lasts::UntilMended }
    }
}
