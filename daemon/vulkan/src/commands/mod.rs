//! Commands that are executed by hand and belong to no other folder.

pub(crate) mod buffer;
pub(crate) mod descriptor_pool;
pub(crate) mod device;
pub(crate) mod dual_buffers;
pub(crate) mod formats;
pub(crate) mod host_copy;
pub(crate) mod image;
pub(crate) mod instance;
pub(crate) mod layout;
pub(crate) mod physical_device;
pub(crate) mod pipeline;
pub(crate) mod pipeline_cache;
pub(crate) mod query;
pub(crate) mod shader;
pub(crate) mod unbound;
