//! Command pools and buffers, and commands on their way into a recording.

pub mod command_buffer;
pub mod command_pool;
pub mod recorder;
