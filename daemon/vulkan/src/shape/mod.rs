//! The host's device as a guest sees it, and the reasons for the differences.

pub(crate) mod absent;
pub(crate) mod extensions;
pub(crate) mod formats;
pub(crate) mod harden;
pub(crate) mod physical_device;
pub(crate) mod planes;
pub(crate) mod replay;
pub(crate) mod reshape;
pub(crate) mod tables;
