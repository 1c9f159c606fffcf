//! Command buffers: recording, and the order in which queues execute them.

pub(super) mod dispatches;
pub(super) mod queries;
pub(super) mod recording;
pub(super) mod releases;
pub(super) mod synchronization;
