//! The form of a module before anything has a meaning: words, instructions and their grammar, ids, the order of parts; and the errors.

pub(super) mod error;
pub mod grammar;
pub(super) mod ids;
pub(super) mod opcode;
pub(super) mod section;
pub(super) mod sets;
pub(super) mod words;
