//! The backing of device memory: pages, files, and what a driver maps.

pub mod anchors;
pub mod capture;
pub mod memory;
pub mod pages;
pub mod reuse_key;
