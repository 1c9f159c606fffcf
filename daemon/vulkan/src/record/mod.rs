//! Command pools and buffers, and commands on their way into a recording.

pub(crate) mod command_buffer;
pub(crate) mod command_pool;
pub(crate) mod queries;
pub(crate) mod recorder;
