//! The Venus command stream: bytes to typed values and back.
//!
//! `generated` holds one type per Vulkan struct, command and reply; `wire`, `shape`, `chain` and `plain` hold their parts. `stream` frames commands, `ring`
//! does the arithmetic of rings, `capset` says which messages are decodable.

pub mod capset;
pub mod chain;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[rustfmt::skip]
#[allow(missing_docs, reason = "members are documented by the Vulkan specification")]
#[allow(clippy::all, clippy::too_many_lines, reason = "machine-made; the generator is linted instead")]
pub mod generated;
mod plain;
pub mod ring;
mod shape;
pub mod stream;
pub mod wire;
