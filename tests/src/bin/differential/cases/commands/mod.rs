//! Command buffers: what is recorded, and in which order queues execute it.

pub mod dispatches;
pub mod queries;
pub mod recording;
pub mod releases;
pub mod synchronization;
