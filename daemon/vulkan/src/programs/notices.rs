//! Command buffers that tell a guest of a lost device: they store `VK_ERROR_DEVICE_LOST` where its driver looks for the result of a fence.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::Fault;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// The most submissions of a lost device whose fences are answered; a guest that goes on after so many does not look at results.
const NOTICES_MAX: usize = 4096;

/// The result of a fence that the guest sees when the device is lost.
pub(crate) const LOST: i32 = vk::Result::ERROR_DEVICE_LOST.as_raw();

/// Command buffers of ours that tell the guest, by queue family. They live as long as the device.
#[derive(Debug, Default)]
pub struct Notices {
    pools: FxHashMap<u32, vk::CommandPool>,
    made: usize,
}

/// The place where a command buffer stores `VK_SUCCESS` for the guest: a buffer of the host and an offset.
pub(crate) type Success = (u64, u64);

/// Makes a command buffer for queues of a family of the host. The command buffer stores [`LOST`] where the guest expects success, after all work
/// before it.
///
/// # Errors
///
/// The guest has used the lost device too often, or the driver is out of memory.
pub(crate) fn notice(
    notices: &mut Notices,
    device: &ash::Device,
    family: u32,
    (buffer, offset): Success,
) -> Result<vk::CommandBuffer, Fault> {
    if notices.made >= NOTICES_MAX {
        return Err(Fault::rule("a lost device is used for too many calls"));
    }
    notices.made += 1;
    let pool = match notices.pools.get(&family) {
        Some(pool) => *pool,
        None => {
            let info = vk::CommandPoolCreateInfo::default().queue_family_index(family);
            // SAFETY: the device is live and has queues of this family.
            let pool = unsafe { device.create_command_pool(&info, None) }?;
            notices.pools.insert(family, pool);
            pool
        }
    };
    let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
    // SAFETY: the pool is live, and locked with the rest of the notices, here and below.
    let commands = unsafe { device.allocate_command_buffers(&info) }?[0];
    // SAFETY: as above.
    unsafe { device.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default()) }?;
    let (all, transfer, host) = (
        vk::PipelineStageFlags::ALL_COMMANDS,
        vk::PipelineStageFlags::TRANSFER,
        vk::PipelineStageFlags::HOST,
    );
    barrier(
        device,
        commands,
        (all, vk::AccessFlags::MEMORY_WRITE),
        (transfer, vk::AccessFlags::TRANSFER_WRITE),
    );
    // SAFETY: as above; the buffer was live when the guest recorded the same, and if it is not any more, the guest broke its own context.
    unsafe { device.cmd_fill_buffer(commands, vk::Buffer::from_raw(buffer), offset, 4, LOST as u32) };
    barrier(
        device,
        commands,
        (transfer, vk::AccessFlags::TRANSFER_WRITE),
        (host, vk::AccessFlags::HOST_READ),
    );
    // SAFETY: as above.
    unsafe { device.end_command_buffer(commands) }?;
    Ok(commands)
}

type Side = (vk::PipelineStageFlags, vk::AccessFlags);

fn barrier(device: &ash::Device, commands: vk::CommandBuffer, (from, written): Side, (to, read): Side) {
    let memory = vk::MemoryBarrier::default().src_access_mask(written).dst_access_mask(read);
    let flags = vk::DependencyFlags::empty();
    // SAFETY: the command buffer is being recorded.
    unsafe { device.cmd_pipeline_barrier(commands, from, to, flags, &[memory], &[], &[]) };
}

/// Destroys the notices of a device that is idle.
pub(crate) fn destroy_notices(device: &ash::Device, notices: &Mutex<Notices>) {
    for (_, pool) in notices.lock().pools.drain() {
        // SAFETY: the device is live and idle.
        unsafe { device.destroy_command_pool(pool, None) };
    }
}
