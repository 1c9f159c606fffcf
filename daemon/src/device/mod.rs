//! The virtio-gpu device as a state machine (VIRTIO 1.3, 5.7): commands and worker events in, effects out.
//!
//! This module knows no socket, process, thread, clock or Vulkan. The device asks for outside actions through [`Effects`]; [`Device::blob_exported`]
//! and its neighbours report their results. Each command has a ticket: a value that the device only keeps, and hands back with the command's
//! answer, exactly once.

mod blob;
mod command;
mod context;
mod contexts;
mod effects;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(feature = "fuzzing"), allow(unreachable_pub, reason = "fuzz targets name its items"))]
pub mod fuzzing;
mod memory;
mod model;
mod passed;
mod pieces;
mod quota;
mod quotas;
mod resource;
mod resources;
mod scanout;
mod starts;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use context::Obstacle;
pub(crate) use effects::{Effects, Shown};
pub(crate) use error::{EffectFailed, GuestError};
pub(crate) use memory::Lack;
pub(crate) use model::{Device, DeviceOptions, MapsAtReset};
pub(crate) use passed::PassedDevice;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use passed::samples;
pub(crate) use quota::{Owner, Quota};
