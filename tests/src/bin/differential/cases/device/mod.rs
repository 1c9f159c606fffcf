//! The device itself: its memory, properties and extensions, and several of it.

pub mod devices;
pub mod extensions;
pub mod memory;
pub mod properties;
