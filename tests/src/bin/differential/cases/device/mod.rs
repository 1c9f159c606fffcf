//! The device itself: its memory, properties and extensions, and several of it.

pub(super) mod devices;
pub(super) mod extensions;
pub(super) mod memory;
pub(super) mod properties;
