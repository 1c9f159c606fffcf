//! IR to Rust source: one file of tokens per output file, formatted by prettyplease.
//!
//! Emitted code is boring on purpose: one line per member, calling the hand-written runtime of `protocol::venus`.

mod capabilities;
mod chain;
mod codec;
mod commands;
mod dispatch;
pub mod lower;
mod members;
mod numbers;
mod output;
mod spelling;
pub mod spirv;
mod structs;
mod tables;

pub use codec::protocol;
pub use output::Output;
