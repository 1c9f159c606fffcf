//! The host's driver: its functions, its instance and GPUs, and the functions of a device that memory needs.

pub(crate) mod back_end;
pub(crate) mod buffers_told;
mod c_structs;
pub(crate) mod families;
pub(crate) mod header;
pub(crate) mod host_copy;
pub(crate) mod host_pointers;
pub(crate) mod instance;
pub(crate) mod markers;
pub(crate) mod memory_fds;
pub(crate) mod physical_device;
pub(crate) mod time_slices;

#[cfg(test)]
mod layout_tests;
// Generated code cannot carry comments; its `unsafe` blocks are calls under the invariants of `vulkan`. Its format is the generator's.
#[allow(clippy::undocumented_unsafe_blocks, reason = "argued once, at the head of `vulkan`")]
#[allow(clippy::too_many_lines, clippy::missing_transmute_annotations, reason = "one line per member or function")]
#[rustfmt::skip]
#[allow(unsafe_code, reason = "function pointers are loaded by name")]
pub(crate) mod generated;
