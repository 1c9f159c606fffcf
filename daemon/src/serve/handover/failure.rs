//! The reason why a context, or a VM, is not handed over, and for how long that reason lasts.

use super::Asker;

/// The reason why a context, or a VM, is not handed over.
#[derive(Debug)]
pub(in crate::serve) struct Failure {
    pub(in crate::serve) reason: String,
    pub(in crate::serve) lasts: Lasts,
}

/// The time for which the cause of a failure persists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Lasts {
    /// The reason may be gone in a moment.
    ForNow,
    /// The reason may stay until an operator or programs of the host remove it.
    UntilMended,
    /// The reason lasts for as long as the context, or the VM, does not change.
    ForGood,
}

impl Failure {
    pub(in crate::serve) fn for_now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), lasts: Lasts::ForNow }
    }

    pub(in crate::serve) fn until_mended(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), lasts: Lasts::UntilMended }
    }

    pub(in crate::serve) fn for_good(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), lasts: Lasts::ForGood }
    }

    /// Returns whether the log tells operators of the failure: always if one has asked, and otherwise if the reason does not pass by itself.
    pub(in crate::serve) fn concerns_operators(&self, asker: Asker) -> bool {
        asker == Asker::Operator || self.lasts != Lasts::ForNow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_hear_of_what_they_have_asked_for_and_of_what_does_not_pass_by_itself() {
        for asker in [Asker::Operator, Asker::Broker, Asker::Itself, Asker::Test] {
            assert_eq!(Failure::for_now("busy").concerns_operators(asker), asker == Asker::Operator);
            assert!(Failure::until_mended("no memory").concerns_operators(asker));
            assert!(Failure::for_good("it lends memory").concerns_operators(asker));
        }
    }
}
