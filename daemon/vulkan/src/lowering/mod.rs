//! Conversion of the protocol's values to the driver's structs, and back.

pub(crate) mod handle_types;
pub(crate) mod lower;
mod plain;
pub(crate) mod prelude;

// Generated code cannot carry comments. Its format is the generator's.
#[allow(clippy::too_many_lines, reason = "one line per member")]
#[rustfmt::skip]
mod generated;
