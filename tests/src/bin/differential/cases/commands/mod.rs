//! Command buffers: what is recorded, and in which order queues execute it.

pub(super) mod dispatches;
pub(super) mod queries;
pub(super) mod recording;
pub(super) mod releases;
pub(super) mod synchronization;
