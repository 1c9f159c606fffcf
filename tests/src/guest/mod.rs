//! A virtio-gpu driver: the Linux kernel's part for a Venus process, without a kernel.
//!
//! This module knows nothing of the bridge, and of Vulkan only what `device` needs to touch memory. Ids, fences and window offsets come
//! from counters of the whole VM, and commands are sent in the order and form of Linux' `virtio_gpu` driver.

mod blob;
pub mod device;
mod gpu;
pub mod ring;
pub mod timeline;

pub use blob::{Blob, is_refusal};
pub use gpu::{Answer, Gpu, GpuError, PATIENCE};
