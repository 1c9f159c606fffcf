//! What two allocations have in common if one cannot be told from the other, but for what lies in it.

use crate::config::Heap;

/// Of one device, memory that is alike may stand for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Likeness {
    /// Where it counts.
    pub heap: Heap,
    /// Bytes, in whole pages where the driver is asked for whole pages.
    pub size: u64,
    /// As the guest names it.
    pub type_index: u32,
    /// `VkMemoryAllocateFlags`.
    pub flags: u32,
    /// `VkMemoryAllocateFlagsInfo::deviceMask`.
    pub mask: u32,
}
