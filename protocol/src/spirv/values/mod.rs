//! Types, and constants with the operations that make them.

pub(super) mod constants;
pub(super) mod operations;
pub(super) mod types;
