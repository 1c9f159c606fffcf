//! The virtio-gpu device protocol: configuration space, commands and responses (VIRTIO 1.3, 5.7; the numbers are those of
//! Linux' `virtio_gpu.h`).
//!
//! A request is decoded once from bytes that the guest cannot change any more: [`Header::decode`] first, because every answer, also the one to a
//! command that makes no sense, echoes it; then [`Command::decode`]. This module does not know which resources and contexts exist.

mod command;
mod config;
#[cfg(feature = "driver")]
mod driver;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod header;
mod response;
#[cfg(test)]
mod tests;
mod types;
mod wire;

pub use command::{Command, CommandError, CommandLimits};
pub use config::{Config, Features, HOST_VISIBLE_SHMID, MAX_SCANOUTS};
pub use header::{CommandType, HEADER_BYTES, Header, HeaderFlags, ResponseType};
pub use response::{DisplayMode, RESPONSE_BYTES_MAX, Response};
pub use types::{BlobFlags, BlobMem, Fence, FenceTimeline, MapCache, MemEntry, Rect};
