//! A device that is lost as the guest sees it, while the host's device is well.
//!
//! Guests submit without waiting for a result. The worker leaves out the parts that cannot run because an object in them was never made.
//! The guest must not take the outcome for a result, so the device is lost from then on: every call that waits for an answer reports it, and
//! a fence is answered where the guest's driver looks. Mesa before 26.2 lets the queue write a fence's `VkResult` to memory and polls it there:
//! the command that would write `VK_SUCCESS` is replaced by one that writes `VK_ERROR_DEVICE_LOST`. Semaphores are signalled, since
//! counters know no errors. Later Mesa keeps fences in the guest, where the worker cannot report the loss: the context ends.
//!
//! When the worker itself is gone, the device process writes these words ([`shm::ResultWords`]).

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::Fault;
use crate::driver::generated::sys;
use crate::execution::call::Call;
use crate::logical::device::Device;
use crate::programs::notices::notice;
use crate::record::command_buffer;
use ash::vk::{self, Handle as _};
use protocol::venus::generated::{self as venus, ChainStruct};

/// The part of a submission that can run, for `vkQueueSubmit`.
pub(crate) fn submits<'a>(
    call: &Call<'a>,
    device: &Device,
    family: u32,
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
        let kept = call.arena.slice_copy(&kept(call, device, family, buffers)?)?;
        (lowered.command_buffer_count, lowered.p_command_buffers) = (kept.len() as u32, kept.as_ptr());
        runnable.push(lowered);
    }
    Ok(call.arena.slice_copy(&runnable)?)
}

/// The part of a submission that can run, for `vkQueueSubmit2`.
pub(crate) fn submits2<'a>(
    call: &Call<'a>,
    device: &Device,
    family: u32,
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
        let infos: Vec<_> = kept(call, device, family, buffers)?
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

/// Leaves out, as a whole, a batch whose semaphores were never made.
fn lowered<T>(lowered: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match lowered {
        Ok(lowered) => Ok(Some(lowered)),
        Err(Fault::Failed(_)) => Ok(None),
        Err(lost) => Err(lost),
    }
}

/// Returns a chain without masks of device groups, because the masks count command buffers that are left out.
pub(super) fn without_masks<'a>(
    call: &Call<'a>,
    chain: &[ChainStruct<'a>],
) -> Result<&'a [ChainStruct<'a>], Fault> {
    let kept: Vec<_> =
        chain.iter().filter(|next| !matches!(next, ChainStruct::DeviceGroupSubmitInfo(_))).copied().collect();
    Ok(call.arena.slice_copy(&kept)?)
}

/// Returns the host handles of the command buffers that can run. A command buffer that would report success to the guest is replaced.
fn kept(
    call: &Call<'_>,
    device: &Device,
    family: u32,
    buffers: impl Iterator<Item = venus::CommandBuffer>,
) -> Result<Vec<u64>, Fault> {
    let mut kept = Vec::new();
    for id in buffers {
        match command_buffer::runs(call, id)? {
            Some((raw, None)) => kept.push(raw),
            Some((_, Some(told))) => {
                let family = device.physical.order.swap(family);
                let notice = notice(&mut device.notices.lock(), &device.ash, family, told)?;
                kept.push(notice.as_raw());
            }
            None => {}
        }
    }
    Ok(kept)
}
