//! The backing of device memory: pages, files, and memory that a driver maps.

pub(crate) mod anchors;
pub(crate) mod capture;
pub(crate) mod memory;
pub(crate) mod pages;
pub(crate) mod reuse_key;
