//! The waits of a submission before it can run: for values of timeline semaphores, and for submissions that signal binary ones.
//!
//! This file calls no driver itself: it asks for the state of fences and semaphores through [`Driver`].

use crate::kinds::semaphore::{Progress, Signal};
use parking_lot::Mutex;
use protocol::venus::generated::Semaphore;
use smallvec::SmallVec;
use std::sync::Arc;

/// The part of the driver that is asked for the state of submissions.
pub(crate) trait Driver {
    /// Returns whether a fence is signalled, or never will be.
    fn is_signalled(&self, marker: u64) -> bool;
    /// Returns whether a timeline semaphore has reached a value, or is gone.
    fn has_reached(&self, semaphore: Semaphore, raw: u64, value: u64) -> bool;
}

/// One wait of a submission.
#[derive(Debug)]
pub(crate) enum Wait {
    /// A value of a timeline semaphore.
    Timeline {
        /// The semaphore, as the guest calls it.
        semaphore: Semaphore,
        /// The host's handle, because the guest may use the id again for another semaphore.
        raw: u64,
        /// The value.
        value: u64,
        /// The state of the semaphore, which says how it is signalled.
        signal: Arc<Mutex<Signal>>,
    },
    /// The submission that signals a binary semaphore.
    Signalled(Progress),
}

/// All waits of a submission; most submissions have none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits(Option<Arc<SmallVec<[Wait; 2]>>>);

impl Waits {
    fn all(&self) -> impl Iterator<Item = &Wait> {
        self.0.iter().flat_map(|waits| waits.iter())
    }

    /// Returns whether a timeline semaphore lacks its value, or the driver has not yet got the submission that signals a binary semaphore.
    pub(crate) fn are_missing(&self, driver: &impl Driver) -> bool {
        self.all().any(|wait| match wait {
            Wait::Timeline { semaphore, raw, value, .. } => !driver.has_reached(*semaphore, *raw, *value),
            Wait::Signalled(by) => !by.is_taken(),
        })
    }

    /// Returns whether all waits are over.
    pub(crate) fn are_over(&self, driver: &impl Driver) -> bool {
        self.all().all(|wait| match wait {
            Wait::Timeline { semaphore, raw, value, .. } => driver.has_reached(*semaphore, *raw, *value),
            Wait::Signalled(by) => by.is_complete(),
        })
    }

    /// Returns whether all waits are over, or will be without further commands once the driver has the submission.
    pub(crate) fn are_ready(&self, driver: &impl Driver) -> bool {
        self.all().all(|wait| match wait {
            Wait::Timeline { semaphore, raw, value, signal } => {
                signal.lock().promises(*value) || driver.has_reached(*semaphore, *raw, *value)
            }
            Wait::Signalled(by) => by.is_taken(),
        })
    }
}

impl FromIterator<Wait> for Waits {
    fn from_iter<I: IntoIterator<Item = Wait>>(waits: I) -> Self {
        let waits: SmallVec<_> = waits.into_iter().collect();
        Self((!waits.is_empty()).then(|| Arc::new(waits)))
    }
}
