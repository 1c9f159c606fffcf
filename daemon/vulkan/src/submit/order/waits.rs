//! The waits of a submission before it can run: for values of timeline semaphores, and for submissions that signal binary ones.
//!
//! This file knows no driver: what a fence or a semaphore says is asked through [`Driver`].

use crate::kinds::semaphore::{Progress, Signal};
use parking_lot::Mutex;
use protocol::venus::generated::Semaphore;
use smallvec::SmallVec;
use std::sync::Arc;

/// The driver, as far as it is asked how submissions stand.
pub(crate) trait Driver {
    /// Returns whether a fence is signalled, or never will be.
    fn is_signalled(&self, marker: u64) -> bool;
    /// Returns whether a timeline semaphore has reached a value, or is gone.
    fn has_reached(&self, semaphore: Semaphore, raw: u64, value: u64) -> bool;
}

/// Something that a submission waits for.
#[derive(Debug)]
pub(crate) enum Wait {
    /// A value of a timeline semaphore.
    Timeline {
        /// The semaphore, as the guest calls it.
        semaphore: Semaphore,
        /// The host's handle, as the guest may use the id again.
        raw: u64,
        /// The value.
        value: u64,
        /// The state of the semaphore, which says how it is signalled.
        signal: Arc<Mutex<Signal>>,
    },
    /// The submission that signals a binary semaphore.
    Signalled(Progress),
}

/// All that a submission waits for; most wait for nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits(Option<Arc<SmallVec<[Wait; 2]>>>);

impl Waits {
    fn all(&self) -> impl Iterator<Item = &Wait> {
        self.0.iter().flat_map(|waits| waits.iter())
    }

    /// Returns whether something is missing that no submission which the driver has will bring.
    pub(crate) fn are_missing(&self, driver: &impl Driver) -> bool {
        self.all().any(|wait| match wait {
            Wait::Timeline { semaphore, raw, value, .. } => !driver.has_reached(*semaphore, *raw, *value),
            Wait::Signalled(by) => !by.is_taken(),
        })
    }

    /// Returns whether all of it is there.
    pub(crate) fn are_over(&self, driver: &impl Driver) -> bool {
        self.all().all(|wait| match wait {
            Wait::Timeline { semaphore, raw, value, .. } => driver.has_reached(*semaphore, *raw, *value),
            Wait::Signalled(by) => by.is_complete(),
        })
    }

    /// Returns whether all of it is there, or will be without further commands once the driver has the submission.
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
