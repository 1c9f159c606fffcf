//! Semaphores: who signals them, and how far that has come.

use crate::vulkan::objects::object::{Kind, State};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How far a submission has come. Outlives it, as semaphores remember who signals them.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU8>);

/// The driver has it. Before, nobody else may name its marker (Vulkan 3.6, of vkQueueSubmit's fence).
pub const TAKEN: u8 = 1;
/// The device is through with it.
pub const COMPLETE: u8 = 2;

impl Progress {
    /// The driver has it, or had.
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire) >= TAKEN
    }

    /// The device is through with it, or will never have it.
    pub fn is_complete(&self) -> bool {
        self.0.load(Ordering::Acquire) == COMPLETE
    }

    pub fn reach(&self, step: u8) {
        self.0.fetch_max(step, Ordering::AcqRel);
    }
}

/// How a semaphore is signalled.
#[derive(Debug)]
pub enum Signal {
    /// To values, by queues and by the host.
    Timeline {
        /// The highest that what the driver has taken will signal.
        promised: u64,
    },
    /// By this submission, the last that was to.
    Binary(Option<Progress>),
}

impl Signal {
    /// Whether what the driver has taken signals a value.
    pub fn promises(&self, value: u64) -> bool {
        matches!(self, Self::Timeline { promised } if *promised >= value)
    }
}

impl State for Mutex<Signal> {}

impl Kind for venus::Semaphore {
    type State = Mutex<Signal>;
}
