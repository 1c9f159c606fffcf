//! Executors and rings at rest: what another process needs of them to go on.

use super::reply::{ReplyPlace, ReplyStream};
use super::resources::Resources;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use vulkan::ContextLost;

/// An executor between two commands, to be gone on with by another.
#[derive(Debug, Default)]
pub(super) struct Begin {
    /// The reply stream.
    pub reply: ReplyStream,
    /// The bytes that were executed of the streams which the next command names.
    pub begun: Option<usize>,
}

/// An executor at rest, as another process finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AtRest {
    /// The place of its reply stream.
    pub reply: Option<ReplyPlace>,
    /// The bytes that were executed of the streams which the next command names; none if that has not begun.
    pub begun: Option<u64>,
}

impl AtRest {
    /// Returns the state with which an executor in this process begins to be as that one.
    ///
    /// # Errors
    ///
    /// There is no such reply stream.
    pub(super) fn begin(&self, resources: &Resources) -> Result<Begin, ContextLost> {
        let begun = self.begun.map(usize::try_from).transpose();
        let begun = begun.map_err(|_| ContextLost::new("a stream of an impossible length"))?;
        Ok(Begin { reply: ReplyStream::at(self.reply, resources)?, begun })
    }
}

/// A ring at rest, as another process finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RingAtRest {
    /// The driver's id of the ring.
    pub id: u64,
    /// The `vkCreateRingMESA` that made it, as it was encoded.
    pub created_by: Vec<u8>,
    /// Everything before this position is executed.
    pub head: u32,
    /// The position of the virtqueue's stream, as far as the ring was told.
    pub virtqueue_seqno: u64,
    /// The state of its executor.
    pub executor: AtRest,
}

/// The state in which the executor of a ring came to rest: written by the ring's thread, read by others while that rests.
pub(super) type Rests = Arc<Mutex<AtRest>>;
