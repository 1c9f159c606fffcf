//! A device that is lost as the guest sees it, while the host's is well.
//!
//! Guests submit without waiting for a result. What cannot run, because an object in it was never made, is left out; that must not
//! pass for a result. So the device is lost from then on: every call that waits for an answer is told so, and a fence is answered
//! where the driver looks for it. Mesa before 26.2 lets the queue write a fence's `VkResult` to memory and polls it there: the
//! command that would write `VK_SUCCESS` is replaced by one that writes `VK_ERROR_DEVICE_LOST`. Semaphores are signalled, since
//! counters know no errors. Later Mesa keeps fences in the guest, where nothing can be told: its context ends.
//!
//! When the worker itself is gone, the device process writes these words ([`crate::shm::ResultWords`]).

use super::call::Call;
use super::command_buffer;
use super::device::Device;
use super::error::Fault;
use super::generated::sys;
use super::queue::Queue;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use protocol::venus::generated::ChainStruct;
use rustc_hash::FxHashMap;

/// Submissions of a lost device whose fences are answered; a guest that goes on after so many does not look.
const NOTICES_MAX: usize = 4096;

/// What the guest sees.
pub const LOST: i32 = vk::Result::ERROR_DEVICE_LOST.as_raw();

/// Command buffers of ours that tell the guest, by queue family. They live as long as the device.
#[derive(Debug, Default)]
pub struct Notices {
    pools: FxHashMap<u32, vk::CommandPool>,
    made: usize,
}

/// Where a command buffer stores `VK_SUCCESS` for the guest: a buffer of the host and an offset.
pub type Success = (u64, u64);

/// The part of a submission that can run, for `vkQueueSubmit`.
pub fn submits<'a>(
    call: &Call<'a>,
    device: &Device,
    queue: &Queue,
    submits: &[venus::SubmitInfo<'a>],
) -> Result<&'a mut [sys::SubmitInfo], Fault> {
    let mut runnable = Vec::new();
    for submit in submits {
        let p_next = without_masks(call, submit.p_next)?;
        let stripped =
            venus::SubmitInfo { p_next, command_buffer_count: 0, p_command_buffers: None, ..*submit };
        let Some(lowered) = lowered(call.lowering().out_pointer(Some(&stripped)))? else { continue };
        // SAFETY: a struct of the arena that was just written.
        let mut lowered = unsafe { *lowered };
        let buffers = submit.p_command_buffers.unwrap_or(&[]).iter().copied();
        let kept = call.arena.slice_copy(&kept(call, device, queue, buffers)?)?;
        (lowered.command_buffer_count, lowered.p_command_buffers) = (kept.len() as u32, kept.as_ptr());
        runnable.push(lowered);
    }
    Ok(call.arena.slice_copy(&runnable)?)
}

/// The part of a submission that can run, for `vkQueueSubmit2`.
pub fn submits2<'a>(
    call: &Call<'a>,
    device: &Device,
    queue: &Queue,
    submits: &[venus::SubmitInfo2<'a>],
) -> Result<&'a mut [sys::SubmitInfo2], Fault> {
    let mut runnable = Vec::new();
    for submit in submits {
        let stripped =
            venus::SubmitInfo2 { command_buffer_info_count: 0, p_command_buffer_infos: None, ..*submit };
        let Some(lowered) = lowered(call.lowering().out_pointer(Some(&stripped)))? else { continue };
        // SAFETY: a struct of the arena that was just written.
        let mut lowered = unsafe { *lowered };
        let buffers = submit.p_command_buffer_infos.unwrap_or(&[]).iter().map(|info| info.command_buffer);
        let infos: Vec<_> = kept(call, device, queue, buffers)?
            .into_iter()
            .map(|command_buffer| sys::CommandBufferSubmitInfo {
                s_type: vk::StructureType::COMMAND_BUFFER_SUBMIT_INFO.as_raw(),
                p_next: std::ptr::null(),
                command_buffer,
                device_mask: 0,
            })
            .collect();
        let infos = call.arena.slice_copy(&infos)?;
        (lowered.command_buffer_info_count, lowered.p_command_buffer_infos) =
            (infos.len() as u32, infos.as_ptr());
        runnable.push(lowered);
    }
    Ok(call.arena.slice_copy(&runnable)?)
}

/// A batch whose semaphores were never made is left out as a whole.
fn lowered<T>(lowered: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match lowered {
        Ok(lowered) => Ok(Some(lowered)),
        Err(Fault::Failed(_)) => Ok(None),
        Err(lost) => Err(lost),
    }
}

/// Masks of device groups count command buffers that are not there any more.
fn without_masks<'a>(call: &Call<'a>, chain: &[ChainStruct<'a>]) -> Result<&'a [ChainStruct<'a>], Fault> {
    let kept: Vec<_> =
        chain.iter().filter(|next| !matches!(next, ChainStruct::DeviceGroupSubmitInfo(_))).copied().collect();
    Ok(call.arena.slice_copy(&kept)?)
}

/// Host handles of the command buffers that can run. What would tell the guest of success is replaced.
fn kept(
    call: &Call<'_>,
    device: &Device,
    queue: &Queue,
    buffers: impl Iterator<Item = venus::CommandBuffer>,
) -> Result<Vec<u64>, Fault> {
    let mut kept = Vec::new();
    for id in buffers {
        match command_buffer::runs(call, id)? {
            Some((raw, None)) => kept.push(raw),
            Some((_, Some(told))) => kept.push(notice(device, queue.family, told)?.as_raw()),
            None => {}
        }
    }
    Ok(kept)
}

/// A command buffer that stores [`LOST`] where the guest expects success, after everything before it.
fn notice(device: &Device, family: u32, (buffer, offset): Success) -> Result<vk::CommandBuffer, Fault> {
    let mut notices = device.notices.lock();
    if notices.made >= NOTICES_MAX {
        return Err(Fault::lost("a lost device is used on and on"));
    }
    notices.made += 1;
    let pool = match notices.pools.get(&family) {
        Some(pool) => *pool,
        None => {
            let info =
                vk::CommandPoolCreateInfo::default().queue_family_index(device.physical.order.swap(family));
            // SAFETY: the device is live and has queues of this family.
            let pool = unsafe { device.ash.create_command_pool(&info, None) }?;
            notices.pools.insert(family, pool);
            pool
        }
    };
    let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
    // SAFETY: the pool is live, and locked with the rest of the notices, here and below.
    let commands = unsafe { device.ash.allocate_command_buffers(&info) }?[0];
    // SAFETY: as above.
    unsafe { device.ash.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default()) }?;
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
    unsafe { device.ash.cmd_fill_buffer(commands, vk::Buffer::from_raw(buffer), offset, 4, LOST as u32) };
    barrier(
        device,
        commands,
        (transfer, vk::AccessFlags::TRANSFER_WRITE),
        (host, vk::AccessFlags::HOST_READ),
    );
    // SAFETY: as above.
    unsafe { device.ash.end_command_buffer(commands) }?;
    Ok(commands)
}

type Side = (vk::PipelineStageFlags, vk::AccessFlags);

fn barrier(device: &Device, commands: vk::CommandBuffer, (from, written): Side, (to, read): Side) {
    let memory = vk::MemoryBarrier::default().src_access_mask(written).dst_access_mask(read);
    let flags = vk::DependencyFlags::empty();
    // SAFETY: the command buffer is being recorded.
    unsafe { device.ash.cmd_pipeline_barrier(commands, from, to, flags, &[memory], &[], &[]) };
}

/// Destroys the notices of a device that is idle.
pub fn destroy_notices(device: &ash::Device, notices: &Mutex<Notices>) {
    for (_, pool) in notices.lock().pools.drain() {
        // SAFETY: the device is live and idle.
        unsafe { device.destroy_command_pool(pool, None) };
    }
}
