//! What two allocations have in common if one cannot be told from the other, but for what lies in it.

use super::memfd::rounded;
use super::{BackEnd, Request};
use crate::config::Heap;
use crate::vulkan::call::Call;
use crate::vulkan::device::Device;
use crate::vulkan::error::Fault;
use crate::vulkan::zero;
use ash::vk;
use protocol::venus::generated as venus;
use protocol::venus::generated::ChainStruct;

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

/// Flags that say nothing of what lies in the memory.
const FLAGS: vk::MemoryAllocateFlags = vk::MemoryAllocateFlags::from_raw(
    vk::MemoryAllocateFlags::DEVICE_MASK.as_raw()
        | vk::MemoryAllocateFlags::DEVICE_ADDRESS.as_raw()
        | vk::MemoryAllocateFlags::DEVICE_ADDRESS_CAPTURE_REPLAY.as_raw(),
);

/// Types whose memory is more than what lies in it.
const SPECIAL: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::LAZILY_ALLOCATED.as_raw() | vk::MemoryPropertyFlags::PROTECTED.as_raw(),
);

impl Likeness {
    /// What an allocation is like; none if it is like no other: imported, to be shared, or dedicated.
    pub(super) fn of(
        call: &Call<'_>,
        device: &Device,
        info: &venus::MemoryAllocateInfo<'_>,
        request: &Request,
    ) -> Result<Option<Self>, Fault> {
        let types = device.physical.memory.memory_types_as_slice();
        let special =
            types.get(request.type_index as usize).is_none_or(|ty| ty.property_flags.intersects(SPECIAL));
        if special || request.exported || request.import.is_some() || request.size == 0 {
            return Ok(None);
        }
        let (flags, mask) = flags(info);
        let pages = match &device.memory {
            BackEnd::Memfd(_) => request.visible,
            BackEnd::DmaBuf(_) => false,
        };
        // Pages are never dedicated.
        let dedicated =
            info.p_next.iter().any(|next| matches!(next, ChainStruct::MemoryDedicatedAllocateInfo(_)));
        let dedicated = match &device.memory {
            BackEnd::Memfd(_) => dedicated && !pages && zero::stays_dedicated(call, device, info)?,
            BackEnd::DmaBuf(_) => dedicated,
        };
        // What the driver maps is of the size that is asked for, or it is something else.
        let size = if request.driver_mapped { Some(request.size) } else { rounded(request.size, 1) };
        let heap = if pages { Heap::Host } else { request.heap };
        let known = flags & !FLAGS.as_raw() == 0;
        let size = size.filter(|_| known && !dedicated);
        Ok(size.map(|size| Self { heap, size, type_index: request.type_index, flags, mask }))
    }
}

fn flags(info: &venus::MemoryAllocateInfo<'_>) -> (u32, u32) {
    let found = info.p_next.iter().find_map(|next| match next {
        ChainStruct::MemoryAllocateFlagsInfo(info) => Some((info.flags.0, info.device_mask)),
        _ => None,
    });
    found.unwrap_or_default()
}
