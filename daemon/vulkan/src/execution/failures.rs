//! Failures that a guest has not heard of yet. Guests send allocations and submissions without waiting for a result.

use crate::context::cause::Cause;
use crate::context::error::Fault;
use crate::programs::notices::LOST;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The failures of one context.
#[derive(Debug, Default)]
pub struct Failures {
    /// A `VkResult` that the guest did not wait for and has not heard of; 0 if there is none.
    unheard: AtomicI32,
    /// A device is lost as the guest sees it.
    lost: AtomicBool,
    /// The guest has fences in the host, which can report a loss to it.
    host_fences: AtomicBool,
}

impl Failures {
    /// Notes the failure of a command that the guest does not wait for: the next command that can tell the guest reports it.
    pub fn note(&self, result: i32) {
        self.unheard.store(result, Ordering::Relaxed);
    }

    /// Forgets the last failure, which the guest need not hear of any more.
    pub fn forget(&self) {
        self.unheard.store(0, Ordering::Relaxed);
    }

    /// Notes that the guest makes fences of the host.
    pub fn note_host_fence(&self) {
        self.host_fences.store(true, Ordering::Relaxed);
    }

    /// Returns whether a device is lost as the guest sees it.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Marks the device of a submission as lost for the guest, since the submission names an object that was never made, for the reason `result`.
    ///
    /// # Errors
    ///
    /// The guest has no fence that could report the loss: its context is lost.
    pub fn lose_device(&self, result: i32) -> Result<(), Fault> {
        if !self.host_fences.load(Ordering::Relaxed) {
            return Err(Cause::Unmade(result).into());
        }
        if !self.lost.swap(true, Ordering::Relaxed) {
            log::warn!("a submission names an object whose creation failed ({result}): the device is lost");
        }
        Ok(())
    }

    /// Returns the failure that the guest has not heard of, or 0; whether its device is lost; and whether it makes fences of the host.
    pub fn state(&self) -> (i32, bool, bool) {
        let [lost, host_fences] = [&self.lost, &self.host_fences].map(|flag| flag.load(Ordering::Relaxed));
        (self.unheard.load(Ordering::Relaxed), lost, host_fences)
    }

    /// Sets the state that [`Self::state`] returned.
    pub fn restore(&self, (unheard, lost, host_fences): (i32, bool, bool)) {
        self.unheard.store(unheard, Ordering::Relaxed);
        self.lost.store(lost, Ordering::Relaxed);
        self.host_fences.store(host_fences, Ordering::Relaxed);
    }

    /// Returns whether the guest has to hear of a failure with the next answer.
    pub fn are_owed(&self) -> bool {
        self.is_lost() || self.unheard.load(Ordering::Relaxed) != 0
    }

    /// The failure that the guest has to hear of: once, or for ever if its device is lost.
    pub fn take(&self) -> Option<i32> {
        if self.is_lost() {
            return Some(LOST);
        }
        match self.unheard.load(Ordering::Relaxed) {
            0 => None,
            _ => Some(self.unheard.swap(0, Ordering::Relaxed)).filter(|result| *result != 0),
        }
    }
}
