//! The functions that execute each command.

pub(crate) mod execute;
pub(crate) mod prelude;
pub(crate) mod replay;
mod undrawn;

// Generated code cannot carry comments; its `unsafe` blocks are calls under the invariants of `vulkan`. Its format is the generator's.
#[allow(clippy::undocumented_unsafe_blocks, reason = "argued once, at the head of `vulkan`")]
#[allow(clippy::too_many_lines, reason = "one line per command")]
#[rustfmt::skip]
#[allow(unsafe_code, reason = "the driver is called")]
pub(crate) mod generated;
