//! The state that the object table keeps of each kind of object beside its handle.

pub(crate) mod buffer;
pub(crate) mod command_buffer;
pub(crate) mod descriptor_set;
mod devices;
pub(crate) mod fence;
pub(crate) mod image;
pub(crate) mod layout;
mod lookup;
mod memory;
pub(crate) mod pipeline;
pub(crate) mod query;
pub(crate) mod semaphore;
pub(crate) mod shader;
