//! What generated code uses of the files beside it: the generator knows these names, the modules that
//! `protocol/codegen/inputs/execution.toml` names, and no others.

pub use super::call::{Call, settle};
pub use super::command_buffer::CommandBuffer;
pub use super::error::{ContextLost, Fault};
pub use super::lower::{
    Lower, Lowering, Raise, known, known_fixed, raise_array, raise_chain, raise_fixed, raise_linked,
    raise_mapped, raise_plain, raise_pointer, raise_value, read_count,
};
pub use super::objects::Handle;
pub use super::recorder::{Record, Recorder, record_one};
pub use protocol::cursor::Arena;
pub use protocol::venus::generated as venus;
pub use std::ffi::c_void;
pub use std::ptr;
