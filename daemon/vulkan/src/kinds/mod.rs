//! The state that the object table keeps of each kind of object beside its handle.

pub mod buffer;
pub mod command_buffer;
pub mod descriptor_set;
mod devices;
pub mod fence;
pub mod image;
pub mod layout;
mod lookup;
mod memory;
pub mod pipeline;
pub mod query;
pub mod semaphore;
pub mod shader;
