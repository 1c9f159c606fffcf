//! The device itself: its memory, properties and extensions, and several devices.

pub(super) mod devices;
pub(super) mod extensions;
pub(super) mod memory;
pub(super) mod properties;
