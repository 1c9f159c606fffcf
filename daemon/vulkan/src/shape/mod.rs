//! The host's device as a guest sees it, and why it differs.

pub mod absent;
pub mod extensions;
pub mod formats;
pub mod harden;
pub mod physical_device;
pub mod planes;
pub mod reshape;
pub mod tables;
