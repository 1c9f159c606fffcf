//! The names that generated code uses to execute commands: the generator knows these, the modules that
//! `protocol/codegen/inputs/execution.toml` names, and no others.

pub use crate::context::error::{ContextLost, Fault};
pub use crate::execution::call::{Call, settle};
pub use crate::kinds::command_buffer::CommandBuffer;
pub use crate::lowering::lower::{
    known, known_fixed, raise_array, raise_mapped, raise_plain, raise_pointer, raise_value, read_count,
};
pub use crate::record::command_buffer::spoil;
pub use crate::record::recorder::{Record, Recorder, record_one};
pub use protocol::venus::generated as venus;
pub use std::ptr;
