//! Typed messages between the device process and a worker, with file descriptors.
//!
//! One `SOCK_SEQPACKET` socket per worker; one packet is one message in postcard encoding with at most one descriptor beside
//! it. Both ends treat what arrives as hostile: a malformed packet ends the worker, never the device process.

mod channel;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod message;

pub use channel::{Channel, ReceiveError, SendError};
pub use message::{
    Fence, INLINE_SUBMIT_MAX, MapInfo, ProbeReport, ResourceKind, ToDevice, ToWorker, WorkerSetup,
};
