//! The form of a module before anything has a meaning: words, instructions and their grammar, ids, the order of parts; and the errors.

pub mod error;
pub mod grammar;
pub mod ids;
pub mod opcode;
pub mod section;
pub mod words;
