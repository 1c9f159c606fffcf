//! The object table of a context, which knows no kind of object by name.

pub(crate) mod encoding;
pub(crate) mod object;
pub(crate) mod origin;
pub(crate) mod reading;
pub(crate) mod table;
pub(crate) mod usage;

// Generated code cannot carry this comment: the registry gives each type of handles a kind of its own. The format is the generator's.
#[allow(clippy::undocumented_unsafe_blocks, reason = "argued above")]
#[rustfmt::skip]
#[allow(unsafe_code, reason = "each kind of handles is one type")]
mod generated;
