//! `VkDevice`, and its queues as others see them.

pub mod device;
pub mod dual_buffers;
pub mod shaders;
pub mod submitted;
pub mod timeline;
