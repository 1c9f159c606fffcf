//! Types, and constants with the operations that make them.

pub mod constants;
pub mod operations;
pub mod types;
