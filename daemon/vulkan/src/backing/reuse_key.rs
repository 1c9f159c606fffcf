//! The properties that two allocations of device memory have in common if they differ only in their contents.

use config::Heap;

/// The properties by which allocations are alike: allocations of one device that agree in all of them may stand for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReuseKey {
    /// The heap in which the memory counts.
    pub heap: Heap,
    /// Bytes, in whole pages where the driver is asked for whole pages.
    pub size: u64,
    /// The index of the memory type, as the guest names it.
    pub type_index: u32,
    /// `VkMemoryAllocateFlags`.
    pub flags: u32,
    /// `VkMemoryAllocateFlagsInfo::deviceMask`.
    pub mask: u32,
}
