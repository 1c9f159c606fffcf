//! The names that generated code uses to execute commands: the generator knows these, the modules that
//! `protocol/codegen/inputs/execution.toml` names, and no others.

pub(crate) use crate::context::error::{ContextLost, Fault};
pub(crate) use crate::execution::call::{Call, settle};
pub(crate) use crate::kinds::command_buffer::CommandBuffer;
pub(crate) use crate::lowering::lower::{
    known, known_fixed, raise_array, raise_mapped, raise_plain, raise_pointer, raise_value, read_count,
};
pub(crate) use crate::objects::origin::Names;
pub(crate) use crate::record::command_buffer::spoil;
pub(crate) use crate::record::recorder::{Record, Recorder, record_one};
pub(crate) use protocol::venus::generated as venus;
pub(crate) use std::ptr;
