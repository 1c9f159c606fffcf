//! Semaphores: which submission signals them, and the progress of that submission.

use crate::objects::object::{Kind, State};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The progress of a submission. It outlives the submission, because semaphores remember the submission that signals them.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU8>);

/// The driver has the submission. Before that, no other thread may name its marker (Vulkan 3.6, of vkQueueSubmit's fence).
pub(crate) const TAKEN: u8 = 1;
/// The device has completed the submission.
pub(crate) const COMPLETE: u8 = 2;

impl Progress {
    /// Returns whether the driver has or had the submission.
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire) >= TAKEN
    }

    /// Returns whether the device has completed the submission, or will never get it.
    pub fn is_complete(&self) -> bool {
        self.0.load(Ordering::Acquire) == COMPLETE
    }

    pub fn reach(&self, step: u8) {
        self.0.fetch_max(step, Ordering::AcqRel);
    }
}

/// The way in which a semaphore is signalled.
#[derive(Debug)]
pub enum Signal {
    /// A timeline semaphore, which queues and the host signal to values.
    Timeline {
        /// The highest value that the submissions which the driver has taken will signal.
        promised: u64,
    },
    /// A binary semaphore, with the last submission that signals it, if there is one.
    Binary(Option<Progress>),
}

impl Signal {
    /// Returns whether the submissions that the driver has taken signal a value.
    pub fn promises(&self, value: u64) -> bool {
        matches!(self, Self::Timeline { promised } if *promised >= value)
    }
}

impl State for Mutex<Signal> {}

impl Kind for venus::Semaphore {
    type State = Mutex<Signal>;
}
