//! What device memory is made of: pages, files, what a driver maps.

pub mod anchors;
pub mod capture;
pub mod likeness;
pub mod memory;
pub mod pages;
