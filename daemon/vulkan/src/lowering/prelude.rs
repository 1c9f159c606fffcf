//! The imports of generated code that lowers and raises, most of them from the files beside it.

pub(crate) use super::lower::{
    Lower, Lowering, Raise, known, known_fixed, raise_array, raise_chain, raise_fixed, raise_linked,
    raise_mapped,
};
pub(super) use super::plain::plain_structures;
pub(crate) use crate::context::error::Fault;
pub(crate) use crate::driver::generated::sys;
pub(crate) use protocol::cursor::Arena;
pub(crate) use protocol::venus::generated as venus;
pub(crate) use std::ffi::c_void;
pub(crate) use std::ptr;
