//! Commands that are executed by hand and belong to no other folder.

pub mod buffer;
pub mod descriptor_pool;
pub mod device;
pub mod dual_buffers;
pub mod formats;
pub mod host_copy;
pub mod image;
pub mod instance;
pub mod layout;
pub mod physical_device;
pub mod pipeline;
pub mod pipeline_cache;
pub mod query;
pub mod shader;
pub mod unbound;
