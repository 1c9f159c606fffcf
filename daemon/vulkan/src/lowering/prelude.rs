//! The imports of generated code that lowers and raises, most of them from the files beside it.

pub use super::lower::{
    Lower, Lowering, Raise, known, known_fixed, raise_array, raise_chain, raise_fixed, raise_linked,
    raise_mapped,
};
pub use crate::context::error::Fault;
pub use crate::driver::generated::sys;
pub use protocol::cursor::Arena;
pub use protocol::venus::generated as venus;
pub use std::ffi::c_void;
pub use std::ptr;
