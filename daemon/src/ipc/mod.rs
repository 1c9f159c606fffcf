//! The typed messages between the processes of this project, with file descriptors.
//!
//! Each worker has one `SOCK_SEQPACKET` socket; one packet is one message in postcard encoding with at most one descriptor.
//! Both ends treat each packet that arrives as hostile: a malformed packet ends the worker, never the device process.

mod broker;
mod channel;
#[cfg(test)]
mod form_tests;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod launch;
mod message;
#[cfg(test)]
mod message_tests;
mod outbox;
mod slots;
mod succession;

pub use broker::{
    BROKER_MESSAGES, FromBroker, GpuChange, HeldMemory, InForce, Placement, RestartStage, RestartTook,
    RoomOrder, RoomState, SharedGpu, ToBroker, Unmovable,
};
pub use channel::{Channel, ReceiveError, SendError, decode, decode_first, encode};
pub use launch::{ChildRole, DriverFamily, FromLauncher, Replaced, ToLauncher};
pub use message::{
    Fence, HandOver, INLINE_SUBMIT_MAX, MapInfo, ProbeReport, ResourceKind, ToDevice, ToWorker,
    WORKER_MESSAGES, WorkerSetup,
};
pub use outbox::{AtMost, Bound, Outbox, OutboxError};
pub use slots::Slots;
pub use succession::{FromSuccessor, SUCCESSION, ToSuccessor};
