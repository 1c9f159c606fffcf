//! The host's Vulkan driver, as a guest's command stream drives it. The only user of ash.
//!
//! Knows no sockets, no rings and no virtqueues. A decoded command comes in, its ids are looked up, its values become C structs,
//! the driver is called, and what it wrote goes back as the codec's values. `generated` does that for most commands; the files
//! here are its runtime and the commands that need more.
//!
//! # Safety
//!
//! The invariants behind every `unsafe` block of this module and of `generated`:
//!
//! - A host handle comes from the object table of this context, where its kind was checked, and parents outlive children.
//! - A pointer given to the driver is null, or comes from the command's arena, or is borrowed from the command itself; all live
//!   until the call returns. Memory the driver writes is a fresh allocation of the right type and length.
//! - Of Vulkan's own valid usage, `validity` guarantees what drivers index by on the processor, the locks of pools and queues what
//!   they leave to their callers, and `usage` and `retired` that nothing is destroyed in use. The rest is *not* guaranteed: a guest
//!   that breaks it breaks the driver, and the driver is alone in this process with that guest.

#![allow(unsafe_code, reason = "this module is where the driver is called")]

mod absent;
mod batches;
mod budget;
mod buffer;
mod call;
mod cancel;
mod command_buffer;
mod command_pool;
mod descriptor_pool;
mod device;
mod encoding;
mod error;
mod extensions;
mod families;
mod formats;
#[cfg(any(test, feature = "null-driver"))]
pub mod fuzzing;
mod gate;
// Generated code cannot carry comments; its `unsafe` blocks are calls under the invariants above. Its format is the generator's.
#[allow(clippy::undocumented_unsafe_blocks, reason = "argued once, at the head of this module")]
#[allow(clippy::too_many_lines, clippy::missing_transmute_annotations, reason = "one line per member or function")]
#[rustfmt::skip]
mod generated;
mod harden;
mod host_copy;
mod image;
mod instance;
mod lane;
mod layout;
#[cfg(test)]
mod layout_tests;
mod line;
mod loss;
mod lower;
mod markers;
mod memory;
mod objects;
mod parked;
mod pending;
mod physical_device;
mod pipeline;
mod pipeline_cache;
mod prelude;
mod probe;
mod pulse;
mod query;
mod question;
mod queue;
mod reading;
mod recorder;
mod renderer;
mod retired;
mod scheduled;
mod shader;
mod shape;
mod shaping;
mod stamps;
mod submission;
mod submitted;
mod sync;
mod twins;
mod unmarked;
mod usage;
mod useless;
mod validity;
mod watch;
mod zero;

pub use budget::{Budget, Counted};
pub use cancel::Cancel;
pub use error::ContextLost;
pub use gate::Gate;
pub use memory::{Allowance, Exported, Lease, MemoryFile, Piece, ResourceMemory, ResourceTable, map};
pub use probe::probe;
pub use pulse::Pulse;
pub use question::{About, Question};
pub use renderer::Renderer;
pub use shaping::{Shaping, shaping};
pub use submission::Look;
