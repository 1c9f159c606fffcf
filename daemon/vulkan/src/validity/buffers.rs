//! Checks of buffers: ranges lie in their buffer, and buffers lie in their memory.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::{Fault, demand};
use crate::kinds::bound::Bound;
use crate::kinds::buffer::BufferFacts;
use crate::kinds::command_buffer::RecordingState;
use crate::logical::device::Device;
use crate::lowering::lower::Lowering;
use crate::objects::object::StateOf;
use ash::vk::{self, Handle as _};
use protocol::venus::generated::{self as venus, ChainStruct};
use smallvec::SmallVec;
use std::sync::Arc;

const WHOLE_SIZE: u64 = u64::MAX;

/// The most bytes of `vkCmdUpdateBuffer`.
const INLINE_BYTES: u64 = 65_536;

const OUTSIDE: &str = "a range outside of its buffer, or a buffer without memory";

/// `vkCreateBuffer`, of a buffer whose address can be had again if it `replays`.
pub(crate) fn of_buffer(
    info: &venus::BufferCreateInfo<'_>,
    replays: bool,
) -> Result<StateOf<venus::Buffer>, Fault> {
    demand(info.size != 0, "a buffer of no size")?;
    demand(info.flags.0 & SPARSE == 0, "a sparse buffer")?;
    Ok(StateOf::of(BufferFacts::new(info.size, is_computed_on(info), replays)))
}

/// Returns whether a buffer is for more than copies.
pub(crate) fn is_computed_on(info: &venus::BufferCreateInfo<'_>) -> bool {
    let copies = venus::BufferUsageFlags::TRANSFER_SRC.0 | venus::BufferUsageFlags::TRANSFER_DST.0;
    let says = |next: &ChainStruct<'_>| matches!(next, ChainStruct::BufferUsageFlags2CreateInfo(_));
    info.usage.0 & !copies != 0 || info.p_next.iter().any(says)
}

/// Returns whether a buffer may have an address.
pub(crate) fn has_address(info: &venus::BufferCreateInfo<'_>) -> bool {
    let usage = info.p_next.iter().find_map(|next| match next {
        ChainStruct::BufferUsageFlags2CreateInfo(usage) => Some(usage.usage),
        _ => None,
    });
    let address = venus::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
    usage.map_or(info.usage.contains(address), |usage| {
        usage.contains(venus::BufferUsageFlags2::SHADER_DEVICE_ADDRESS)
    })
}

const SPARSE: u32 = venus::BufferCreateFlags::SPARSE_BINDING.0
    | venus::BufferCreateFlags::SPARSE_RESIDENCY.0
    | venus::BufferCreateFlags::SPARSE_ALIASED.0;

/// `vkCreateBufferView`.
pub(crate) fn create_buffer_view(
    l: &Lowering<'_>,
    _: &Arc<Device>,
    c: &venus::CreateBufferView<'_>,
) -> Result<StateOf<venus::BufferView>, Fault> {
    let info = c.p_create_info.ok_or_else(|| Fault::invalid("a buffer view without a description"))?;
    let buffer = l.objects.buffer(info.buffer)?;
    let range = if info.range == WHOLE_SIZE { 1 } else { info.range };
    demand(range != 0, "a buffer view of nothing")?;
    buffer.demand(info.offset, range, OUTSIDE)?;
    Ok(StateOf::none())
}

/// Returns the bytes of device memory.
pub(crate) fn memory_size(l: &Lowering<'_>, id: venus::DeviceMemory) -> Result<u64, Fault> {
    demand(id.0 != 0, "memory is missing")?;
    Ok(l.objects.get(id)?.state::<venus::DeviceMemory>()?.size())
}

/// Demands that a resource of `size` bytes, aligned to `alignment`, lies in memory at an offset.
pub(crate) fn demand_in_memory(
    l: &Lowering<'_>,
    memory: venus::DeviceMemory,
    offset: u64,
    (size, alignment): (u64, u64),
) -> Result<(), Fault> {
    // Memory of another device would be refused only when the command is lowered.
    l.handle(memory)?;
    let end = offset.checked_add(size);
    let inside = memory_size(l, memory).map(|bytes| end.is_some_and(|end| end <= bytes))?;
    demand(inside && offset.is_multiple_of(alignment.max(1)), "it is bound outside of its memory")
}

/// Marks the resources of one command as bound. If one was bound before or is named twice, none is marked. Returns whether they are.
pub(crate) fn mark_all<T>(all: &[T], bind: impl Fn(&T) -> bool, unbind: impl Fn(&T)) -> bool {
    let marked = all.iter().take_while(|one| bind(one)).count();
    if marked < all.len() {
        all[..marked].iter().for_each(unbind);
    }
    marked == all.len()
}

/// Marks buffers as bound, all of them or none.
fn bind(l: &Lowering<'_>, device: &Device, infos: &[venus::BindBufferMemoryInfo<'_>]) -> Result<(), Fault> {
    let mut all = SmallVec::<[_; 4]>::new();
    for info in infos {
        let raw = vk::Buffer::from_raw(l.handle(info.buffer)?);
        demand(!raw.is_null(), "a buffer is missing")?;
        // SAFETY: device and buffer are live.
        let needs = unsafe { device.ash.get_buffer_memory_requirements(raw) };
        demand_in_memory(l, info.memory, info.memory_offset, (needs.size, needs.alignment))?;
        let piece = l.objects.get(info.memory)?.state::<venus::DeviceMemory>()?.piece();
        all.push((l.objects.buffer(info.buffer)?, piece));
    }
    demand(
        mark_all(&all, |(buffer, _)| buffer.bind(), |(buffer, _)| buffer.unbind()),
        "a buffer is bound twice",
    )?;
    for (info, (buffer, piece)) in infos.iter().zip(all) {
        buffer.set_bound(Bound::whole(l.objects.table(), info.memory, info.memory_offset), piece);
    }
    Ok(())
}

/// `vkBindBufferMemory`.
pub(crate) fn bind_buffer_memory(
    l: &Lowering<'_>,
    device: &Arc<Device>,
    c: &venus::BindBufferMemory,
) -> Result<(), Fault> {
    let (buffer, memory, memory_offset) = (c.buffer, c.memory, c.memory_offset);
    bind(l, device, &[venus::BindBufferMemoryInfo { p_next: &[], buffer, memory, memory_offset }])
}

/// `vkBindBufferMemory2`.
pub(crate) fn bind_buffer_memory2(
    l: &Lowering<'_>,
    device: &Arc<Device>,
    c: &venus::BindBufferMemory2<'_>,
) -> Result<(), Fault> {
    bind(l, device, c.p_bind_infos.unwrap_or(&[]))
}

/// `vkGetBufferDeviceAddress`.
pub(crate) fn get_buffer_device_address(
    l: &Lowering<'_>,
    _: &Arc<Device>,
    c: &venus::GetBufferDeviceAddress<'_>,
) -> Result<(), Fault> {
    let info = c.p_info.ok_or_else(|| Fault::invalid("the address of no buffer"))?;
    let buffer = l.objects.buffer(info.buffer)?;
    demand(buffer.has_memory(), "the address of a buffer without memory")?;
    buffer.note_address();
    Ok(())
}

/// `vkCmdFillBuffer`.
pub(crate) fn cmd_fill_buffer(l: &Lowering<'_>, c: &venus::CmdFillBuffer) -> Result<(), Fault> {
    let whole = c.size == WHOLE_SIZE;
    demand(
        c.dst_offset.is_multiple_of(4) && (whole || c.size.is_multiple_of(4)),
        "a fill of parts of words",
    )?;
    let size = if whole { 0 } else { c.size };
    l.objects.buffer(c.dst_buffer)?.demand(c.dst_offset, size, OUTSIDE)
}

/// `vkCmdUpdateBuffer`.
pub(crate) fn cmd_update_buffer(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdUpdateBuffer<'_>,
) -> Result<(), Fault> {
    let short =
        c.data_size <= INLINE_BYTES && c.data_size.is_multiple_of(4) && c.dst_offset.is_multiple_of(4);
    demand(short && c.p_data.is_some(), "an update of parts of words, or of too many")?;
    l.objects.buffer(c.dst_buffer)?.demand(c.dst_offset, c.data_size, OUTSIDE)
}

fn demand_regions(
    l: &Lowering<'_>,
    (source, target): (venus::Buffer, venus::Buffer),
    mut regions: impl Iterator<Item = (u64, u64, u64)>,
) -> Result<(), Fault> {
    let (source, target) = (l.objects.buffer(source)?, l.objects.buffer(target)?);
    regions.try_for_each(|(from, to, size)| {
        source.demand(from, size, OUTSIDE)?;
        target.demand(to, size, OUTSIDE)
    })
}

/// `vkCmdCopyBuffer`.
pub(crate) fn cmd_copy_buffer(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdCopyBuffer<'_>,
) -> Result<(), Fault> {
    let regions = c.p_regions.unwrap_or(&[]).iter().map(|r| (r.src_offset, r.dst_offset, r.size));
    demand_regions(l, (c.src_buffer, c.dst_buffer), regions)
}

/// `vkCmdCopyBuffer2`.
pub(crate) fn cmd_copy_buffer2(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdCopyBuffer2<'_>,
) -> Result<(), Fault> {
    let info = c.p_copy_buffer_info.ok_or_else(|| Fault::invalid("a copy without a description"))?;
    let regions = info.p_regions.unwrap_or(&[]).iter().map(|r| (r.src_offset, r.dst_offset, r.size));
    demand_regions(l, (info.src_buffer, info.dst_buffer), regions)
}

#[cfg(test)]
#[path = "bound_tests.rs"]
mod tests;
