//! The vhost-user session and its virtqueues (VIRTIO 1.3, 2.7; QEMU's vhost-user specification).
//!
//! This module is the only user of `vhost`, `virtio-queue` and `vm-memory`. It knows no command beyond the header that every answer echoes.
//!
//! Two threads meet here. The *message thread* answers the frontend on its socket; the *device thread* takes requests from
//! the virtqueues and answers them. While the device thread waits for the frontend to map a blob ([`Asked`]), the frontend may send
//! its own messages and wait for the answers, so the device thread never holds a lock meanwhile that a message handler takes.
//!
//! `vhost-user-backend` is not used: `docs/decisions-vhost-user-backend.md` says why, part by part.

mod chain;
mod device_state;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(feature = "fuzzing"), allow(unreachable_pub, reason = "fuzz targets name its items"))]
pub mod fuzzing;
mod handler;
mod memory;
mod passed_files;
mod pending;
mod regions;
mod requests;
mod session;
mod shared;
mod stops;
mod succession;
#[cfg(test)]
mod tests;
mod vring;

pub(crate) use device_state::{Direction, Transfer};
pub(crate) use error::SessionError;
pub(crate) use passed_files::PassedFiles;
pub(crate) use pending::{PassedRequest, PendingResponse};
pub(crate) use requests::Asked;
pub(crate) use session::Session;
pub(crate) use shared::{DeviceConfig, Tokens};
pub(crate) use succession::PassedSession;
pub(crate) use vring::{NoRequest, PassedAnswer, Vring};

/// Index of the control queue.
pub(crate) const CONTROLQ: usize = 0;
/// Index of the cursor queue.
const CURSORQ: usize = 1;
/// Queues of the device: the control queue and the cursor queue.
pub(crate) const QUEUES: usize = 2;
