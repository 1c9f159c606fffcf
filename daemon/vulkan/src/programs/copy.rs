//! Copies of contents, which the device makes out of memory that cannot be mapped, and into such memory.
//!
//! Buffers of ours alias the memory, whatever a guest has bound to it. So raw bytes are copied, also those of images.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::alias::{Part, alias};
use super::own_queue::{OwnQueue, Running};
use ash::vk;

/// A part of an allocation, and its place in the staging buffer.
#[derive(Clone, Copy)]
pub(crate) struct Staged {
    /// The part: whole pages.
    pub part: Part,
    /// The place of the part's first byte in the staging buffer.
    pub at: u64,
}

/// The direction in which contents are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Out of the allocations.
    Out,
    /// Into the allocations.
    In,
}

/// Begins to copy between allocations and a staging buffer; [`OwnQueue::finish`] waits for the end.
///
/// # Errors
///
/// `ERROR_FEATURE_NOT_PRESENT` if a buffer cannot be bound to such a part; what the driver answers otherwise.
///
/// # Safety
///
/// The device is live, the queue is its own, the allocations and the buffer are the device's and stay until the end, all parts are inside, and
/// no other code uses them meanwhile.
pub(crate) unsafe fn start_copy(
    queue: &OwnQueue,
    device: &ash::Device,
    staging: vk::Buffer,
    parts: &[Staged],
    way: Way,
) -> Result<Running, vk::Result> {
    let record = |commands: vk::CommandBuffer, buffers: &mut Vec<vk::Buffer>| {
        barrier(device, commands, vk::PipelineStageFlags::ALL_COMMANDS | vk::PipelineStageFlags::HOST);
        for Staged { part, at } in parts {
            let usage = match way {
                Way::Out => vk::BufferUsageFlags::TRANSFER_SRC,
                Way::In => vk::BufferUsageFlags::TRANSFER_DST,
            };
            let alias = alias(device, part, usage, buffers)?;
            let region = [match way {
                Way::Out => vk::BufferCopy { src_offset: 0, dst_offset: *at, size: part.size },
                Way::In => vk::BufferCopy { src_offset: *at, dst_offset: 0, size: part.size },
            }];
            let (from, to) = if way == Way::Out { (alias, staging) } else { (staging, alias) };
            // SAFETY: both are live, and the region is inside of both by the caller's promise.
            unsafe { device.cmd_copy_buffer(commands, from, to, &region) };
        }
        barrier(device, commands, vk::PipelineStageFlags::TRANSFER);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { queue.start(device, record) }
}

/// Records the copy of each first part into the second one, which is as large. Buffers that alias them are added to `aliases`.
///
/// # Errors
///
/// `ERROR_FEATURE_NOT_PRESENT` if a buffer cannot be bound to such a part; what the driver answers otherwise.
pub(crate) fn record_copies(
    device: &ash::Device,
    commands: vk::CommandBuffer,
    pairs: impl Iterator<Item = (Part, Part)>,
    aliases: &mut Vec<vk::Buffer>,
) -> Result<(), vk::Result> {
    for (from, to) in pairs {
        let region = [vk::BufferCopy { src_offset: 0, dst_offset: 0, size: to.size.min(from.size) }];
        let from = alias(device, &from, vk::BufferUsageFlags::TRANSFER_SRC, aliases)?;
        let to = alias(device, &to, vk::BufferUsageFlags::TRANSFER_DST, aliases)?;
        // SAFETY: the device is live, the command buffer is being recorded, and the region is inside of both buffers.
        unsafe { device.cmd_copy_buffer(commands, from, to, &region) };
    }
    barrier(device, commands, vk::PipelineStageFlags::TRANSFER);
    Ok(())
}

/// Makes writes of these stages visible to all commands behind.
fn barrier(device: &ash::Device, commands: vk::CommandBuffer, written_in: vk::PipelineStageFlags) {
    let all = [vk::MemoryBarrier::default()
        .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
        .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE)];
    let everything = vk::PipelineStageFlags::ALL_COMMANDS | vk::PipelineStageFlags::HOST;
    let flags = vk::DependencyFlags::empty();
    // SAFETY: the device is live and the command buffer is being recorded.
    unsafe { device.cmd_pipeline_barrier(commands, written_in, everything, flags, &all, &[], &[]) };
}
