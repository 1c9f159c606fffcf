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

mod backing;
mod commands;
mod context;
mod dispatch;
mod disposal;
mod driver;
mod execution;
#[cfg(any(test, feature = "null-driver"))]
pub mod fuzzing;
mod gates;
mod kinds;
mod logical;
mod lowering;
mod memory;
mod objects;
mod probe;
mod programs;
mod record;
mod renderer;
mod shape;
mod submit;
mod validity;

pub use backing::capture::map;
pub use context::allowance::{Allowance, Lease, MemoryFile, Piece};
pub use context::budget::{Budget, Counted};
pub use context::cancel::Cancel;
pub use context::error::ContextLost;
pub use context::pulse::Pulse;
pub use context::resources::{ResourceMemory, ResourceTable};
pub use gates::gate::Gate;
pub use logical::timeline::Look;
pub use memory::export::Exported;
pub use probe::probe;
pub use renderer::Renderer;
pub use shape::tables::{Shaping, shaping};
pub use submit::question::{About, Question};
