//! The bytes a virtio-gpu driver with Venus exchanges with its device, as typed values.
//!
//! No I/O, no clock, no threads, no Vulkan library. Every length is checked, every allocation is bounded by the bytes that
//! are present or by a limit the caller passes, and nothing here panics on any input.

#![forbid(unsafe_code)]

pub mod cursor;
pub mod error;
pub mod ids;
pub mod spirv;
pub mod venus;
pub mod virtio_gpu;
