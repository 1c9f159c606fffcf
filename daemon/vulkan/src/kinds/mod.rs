//! The state that the object table keeps of each kind of object beside its handle.

pub(crate) mod bound;
pub(crate) mod buffer;
pub(crate) mod command_buffer;
pub(crate) mod descriptor_set;
pub(crate) mod descriptors;
mod devices;
pub(crate) mod fence;
pub(crate) mod image;
pub(crate) mod layout;
mod lookup;
pub(crate) mod pipeline;
pub(crate) mod query;
pub(crate) mod recorded;
pub(crate) mod semaphore;
pub(crate) mod shader;
