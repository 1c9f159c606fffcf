//! Allocations whose memory can be used again for another allocation. Allocations with the same reuse key differ in their contents only.

use super::dedicated;
use super::request::Request;
use crate::backing::pages::rounded;
use crate::backing::reuse_key::ReuseKey;
use crate::context::error::Fault;
use crate::driver::back_end::BackEnd;
use crate::execution::call::Call;
use crate::logical::device::Device;
use ash::vk;
use config::Heap;
use protocol::venus::generated::{self as venus, ChainStruct};

/// Flags that do not concern the contents of memory.
const FLAGS: vk::MemoryAllocateFlags = vk::MemoryAllocateFlags::from_raw(
    vk::MemoryAllocateFlags::DEVICE_MASK.as_raw()
        | vk::MemoryAllocateFlags::DEVICE_ADDRESS.as_raw()
        | vk::MemoryAllocateFlags::DEVICE_ADDRESS_CAPTURE_REPLAY.as_raw(),
);

/// Properties of memory types whose memory is more than its contents.
const SPECIAL: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::LAZILY_ALLOCATED.as_raw() | vk::MemoryPropertyFlags::PROTECTED.as_raw(),
);

/// Returns the reuse key of an allocation; none if no other can use its memory, because it is imported, to be shared, or dedicated.
pub(super) fn reuse_key(
    call: &Call<'_>,
    device: &Device,
    info: &venus::MemoryAllocateInfo<'_>,
    request: &Request,
) -> Result<Option<ReuseKey>, Fault> {
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
        BackEnd::Memfd(_) => dedicated && !pages && dedicated::stays_dedicated(call, device, info)?,
        BackEnd::DmaBuf(_) => dedicated,
    };
    // A caught mapping has exactly the size that was asked for: a mapping of another size is of something else.
    let size = if request.driver_mapped { Some(request.size) } else { rounded(request.size, 1) };
    let heap = if pages { Heap::Host } else { request.heap };
    let known = flags & !FLAGS.as_raw() == 0;
    let size = size.filter(|_| known && !dedicated);
    Ok(size.map(|size| ReuseKey { heap, size, type_index: request.type_index, flags, mask }))
}

fn flags(info: &venus::MemoryAllocateInfo<'_>) -> (u32, u32) {
    let found = info.p_next.iter().find_map(|next| match next {
        ChainStruct::MemoryAllocateFlagsInfo(info) => Some((info.flags.0, info.device_mask)),
        _ => None,
    });
    found.unwrap_or_default()
}
