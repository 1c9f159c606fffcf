//! The bytes a virtio-gpu driver with Venus exchanges with its device, as typed values.
//!
//! The crate has no I/O, no clock, no threads and no Vulkan library. It checks every length, bounds every allocation by the bytes that
//! are present or by a limit that the caller passes, and panics on no input.

#![forbid(unsafe_code)]

pub mod cursor;
pub mod error;
pub mod ids;
pub mod spirv;
pub mod venus;
pub mod virtio_gpu;
