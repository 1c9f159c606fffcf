//! `VkDevice`, and its queues as others see them.

pub(crate) mod device;
pub(crate) mod dual_buffers;
mod own_cache;
pub(crate) mod pipeline_caches;
pub(crate) mod shaders;
pub(crate) mod submitted;
pub(crate) mod timeline;
