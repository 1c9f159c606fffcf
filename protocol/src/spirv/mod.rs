//! SPIR-V from a guest: checked before a driver parses it, in one pass whose time and memory grow with the module alone.
//!
//! Drivers assume a well-formed module: they index tables with its ids, walk its types and blocks recursively, and expand its declarations. So this
//! module checks everything that such a parser trusts (SPIR-V 1.6, sections 2.3 to 2.16, and the grammar): the header, each instruction's length
//! against its operands, every id's bound, definition and scope, the order of the parts, sizes and nesting of types, the types of values that are
//! reached, moved and computed, the blocks of functions and their branches, calls, entry points, capabilities. The meaning of a value is not checked:
//! dominance between blocks that are in order, structured control flow beyond its merge blocks, the operands of images, atomics and subgroups. Sizes
//! of workgroups are judged for one entry point when a pipeline is made of it, and so is whether its layout has the resources that are used.
//!
//! [`zero`] rewrites modules so that workgroup memory starts as zeros.

mod callbacks;
mod capabilities;
mod check;
mod functions;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[allow(clippy::all, clippy::too_many_lines, reason = "machine-made; the generator is linted instead")]
#[allow(dead_code, reason = "the tables hold all kinds of operands, those of kernels too")]
#[rustfmt::skip]
mod generated;
mod layout;
mod operands;
mod resources;
#[cfg(test)]
mod tests;
mod typing;
mod uses;
mod values;
mod workgroups;
pub mod zero;

pub use capabilities::enabled;
pub use check::check;
pub use layout::error::{Culprit, Error, ErrorKind};
pub use layout::grammar;
pub use resources::Resources;

use std::collections::HashMap;

/// Bounds on one module. None comes from a standard; real programs stay far below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Words.
    pub words: usize,
    /// The bound of ids.
    pub ids: u32,
    /// Depth of nested structs and arrays.
    pub type_depth: u32,
    /// Blocks of one function.
    pub blocks: u32,
    /// Depth of nested selections and loops.
    pub nesting: u32,
    /// Numbers that all instructions produce after inlining, and those of all constants. They determine the time and memory of compilers: lavapipe
    /// takes some 10 s and 1 GiB for 2^21. Of 1961 shaders of llama.cpp and of the differential suite none has 2^16.
    pub cost: u64,
    /// Bytes of all variables of functions, and of all private variables.
    pub variable_bytes: u64,
}

impl Limits {
    /// The default limits of the daemon. They allow types and blocks to nest deeper than SPIR-V's universal limits (2.17) ask for.
    pub const DEFAULT: Self = Self {
        words: 8 << 20,
        ids: 1 << 20,
        type_depth: 512,
        blocks: 16_384,
        nesting: 1024,
        cost: 1 << 18,
        variable_bytes: 1 << 20,
    };
}

/// The capabilities and limits of a device.
pub struct Device<'d> {
    /// The newest version of SPIR-V, as the header has it.
    pub version: u32,
    /// Returns whether a capability may be declared, which [`enabled`] lists.
    pub has_capability: &'d dyn Fn(u32) -> bool,
    /// Stages other than compute are served.
    pub graphics: bool,
    /// `maxComputeWorkGroupSize`.
    pub workgroup_size: [u32; 3],
    /// `maxComputeWorkGroupInvocations`.
    pub workgroup_invocations: u32,
    /// `maxComputeSharedMemorySize`.
    pub workgroup_bytes: u32,
    /// `maxBoundDescriptorSets`.
    pub descriptor_sets: u32,
    /// Values of specialisation constants, by their id, of a pipeline; others have their defaults. None before there is a pipeline: then sizes that
    /// depend on them are not judged, as defaults are often unusable.
    pub specialisation: Option<HashMap<u32, u64>>,
}

impl std::fmt::Debug for Device<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}

/// An entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPoint {
    /// The execution model of the entry point.
    pub model: u32,
    /// The name of the entry point.
    pub name: Vec<u8>,
    /// An error if the device does not take the size of its workgroups: such an entry point is for pipelines of other devices, or never
    /// used.
    pub launch: Result<(), Error>,
}

/// The facts of a module that pipelines need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Entry points, in their order.
    pub entry_points: Vec<EntryPoint>,
    /// The resources that entry points use.
    pub resources: Resources,
    /// `SpecId` and bytes of each constant that can be specialised.
    pub specialisable: Vec<(u32, u8)>,
    /// Sizes depend on specialisation: the module has to be checked again with the values.
    pub sizes_vary: bool,
}
