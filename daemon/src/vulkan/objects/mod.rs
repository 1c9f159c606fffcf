//! The object table of a context. Knows no kind of object by name.

pub mod encoding;
pub mod object;
pub mod reading;
pub mod table;
pub mod usage;

// The format is the generator's.
#[rustfmt::skip]
mod generated;
