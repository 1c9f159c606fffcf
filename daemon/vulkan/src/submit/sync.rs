//! Fences and semaphores: waits in slices, and SYNC_FD payloads emulated where Mesa before 26.2 needs them.
//!
//! A guest's sync file lives in the guest's kernel. The host learns only that "the payload was taken out" (after an export) and
//! that "the payload is signalled already" (before an import). The worker answers both with empty submissions or a wait, which need no
//! support of the host's driver.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::order::batches::{Single, groups};
use super::queue::Queue;
use crate::context::cancel::Cancel;
use crate::context::error::Fault;
use crate::driver::markers::WAIT_SLICE_NS;
use crate::execution::call::Call;
use crate::kinds::fence::Fence;
use crate::kinds::semaphore::Signal;
use crate::logical::device::Device;
use crate::logical::submitted::Place;
use crate::objects::object::StateOf;
use crate::validity::semaphores;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated::{self as venus, ChainStruct};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks at fences if the submissions of some wait at the gate.
const HELD_LOOK: Duration = Duration::from_micros(500);

/// Calls `wait` with slices of `timeout` nanoseconds until it is done, the time is over or the wait has to end. An interrupted wait goes on with
/// the remaining time; in a successor the wait begins anew.
fn in_slices(timeout: u64, cancel: &Cancel, mut wait: impl FnMut(u64) -> i32) -> Result<i32, Fault> {
    let start = cancel.begins();
    let total = Duration::from_nanos(timeout);
    loop {
        let left = total.saturating_sub(start.elapsed());
        let slice = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX).min(WAIT_SLICE_NS);
        let result = wait(slice);
        if result != vk::Result::TIMEOUT.as_raw()
            || slice == u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)
        {
            return Ok(result);
        }
        if let Some(stop) = cancel.stop() {
            return Err(cancel.stops(start, stop));
        }
    }
}

/// `vkWaitForFences`.
pub(crate) fn wait_for_fences<'a>(
    call: &Call<'a>,
    c: &venus::WaitForFences<'a>,
) -> Result<venus::WaitForFencesReply, Fault> {
    let device = call.device(c.device)?;
    let fences =
        c.p_fences.unwrap_or(&[]).iter().map(|id| call.state_of_owner(*id)).collect::<Result<Vec<_>, _>>()?;
    let all = c.wait_all != 0;
    let result = in_slices(c.timeout, call.cancel, |slice| wait_slice(&device, &fences, all, slice))?;
    if result == 0 && (all || fences.len() == 1) {
        fences.iter().for_each(|fence| fence.tell_end(&device));
    }
    Ok(venus::WaitForFencesReply { result: venus::VkResult(result) })
}

/// Waits for one slice, for the fences that the driver knows of: the submissions that signal the others wait at the gate.
fn wait_slice(device: &Device, fences: &[Arc<Fence>], all: bool, slice: u64) -> i32 {
    let held = fences.iter().find(|fence| fence.is_held());
    if let Some(held) = held.filter(|_| all) {
        held.wait_released(Duration::from_nanos(slice));
        return vk::Result::TIMEOUT.as_raw();
    }
    let known: Vec<_> = fences.iter().filter(|fence| !fence.is_held()).map(|fence| fence.raw).collect();
    let slice = match held {
        // The held fence may be signalled before the others.
        Some(held) => {
            held.wait_released(Duration::from_nanos(slice).min(HELD_LOOK));
            0
        }
        None => slice,
    };
    if known.is_empty() {
        return vk::Result::TIMEOUT.as_raw();
    }
    // SAFETY: the device is live, and so are the fences.
    match unsafe { device.ash.wait_for_fences(&known, all, slice) } {
        Ok(()) => 0,
        Err(error) => error.as_raw(),
    }
}

/// `vkWaitSemaphores`.
pub(crate) fn wait_semaphores<'a>(
    call: &Call<'a>,
    c: &venus::WaitSemaphores<'a>,
) -> Result<venus::WaitSemaphoresReply, Fault> {
    let device = call.device(c.device)?;
    let info = {
        let l = call.lowering();
        semaphores::check_wait(&l, c.p_wait_info)?;
        l.pointer(c.p_wait_info)?
    };
    let Some(function) = device.table.wait_semaphores else { return Err(Fault::missing("vkWaitSemaphores")) };
    let result = in_slices(c.timeout, call.cancel, |slice| {
        // SAFETY: the device is live, `info` and what it points to live in the arena.
        unsafe { function(device.raw(), info, slice) }
    })?;
    Ok(venus::WaitSemaphoresReply { result: venus::VkResult(result) })
}

/// `vkCreateSemaphore`: without the request to be exportable, which only the guest's kernel fulfils.
pub(crate) fn create_semaphore<'a>(
    call: &Call<'a>,
    c: &venus::CreateSemaphore<'a>,
) -> Result<venus::CreateSemaphoreReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::without("a description"));
    };
    let chain: Vec<_> = info
        .p_next
        .iter()
        .filter(|n| !matches!(n, ChainStruct::ExportSemaphoreCreateInfo(_)))
        .copied()
        .collect();
    let mut stripped = *info;
    stripped.p_next = call.arena.slice_copy(&chain)?;
    let is_timeline = stripped.p_next.iter().any(|next| {
        matches!(next, ChainStruct::SemaphoreTypeCreateInfo(info)
            if info.semaphore_type == venus::SemaphoreType::TIMELINE)
    });
    let lowered = call.lowering().pointer(Some(&stripped))?;
    let Some(function) = device.table.create_semaphore else {
        return Err(Fault::missing("vkCreateSemaphore"));
    };
    let mut raw = 0u64;
    // SAFETY: the device is live, `lowered` and its chain live in the arena.
    let result = unsafe { function(device.raw(), lowered, std::ptr::null(), &raw mut raw) };
    let signal = if is_timeline { Signal::Timeline { promised: 0 } } else { Signal::Binary(None) };
    call.bind(c.p_semaphore, raw, &device, result, StateOf::of(Mutex::new(signal)))?;
    Ok(venus::CreateSemaphoreReply { result: venus::VkResult(result), p_semaphore: c.p_semaphore })
}

/// `vkCreateFence`: without the request to be exportable.
pub(crate) fn create_fence<'a>(
    call: &Call<'a>,
    c: &venus::CreateFence<'a>,
) -> Result<venus::CreateFenceReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else { return Err(Fault::without("a description")) };
    let mut stripped = *info;
    stripped.p_next = &[];
    let lowered = call.lowering().pointer(Some(&stripped))?;
    call.context.failures.note_host_fence();
    let Some(function) = device.table.create_fence else { return Err(Fault::missing("vkCreateFence")) };
    let mut raw = 0u64;
    // SAFETY: the device is live, `lowered` lives in the arena.
    let result = unsafe { function(device.raw(), lowered, std::ptr::null(), &raw mut raw) };
    let fence = Fence::new(vk::Fence::from_raw(raw));
    call.bind(c.p_fence, raw, &device, result, StateOf::of(fence))?;
    Ok(venus::CreateFenceReply { result: venus::VkResult(result), p_fence: c.p_fence })
}

/// `vkResetFences`.
pub(crate) fn reset_fences<'a>(
    call: &Call<'a>,
    c: &venus::ResetFences<'a>,
) -> Result<venus::ResetFencesReply, Fault> {
    let device = call.device(c.device)?;
    for id in c.p_fences.unwrap_or(&[]) {
        let fence = call.state_of_owner(*id)?;
        let result = reset_unless_pending(call, &device, &fence, "vkResetFences")?;
        if result < 0 {
            return Ok(venus::ResetFencesReply { result: venus::VkResult(result) });
        }
    }
    Ok(venus::ResetFencesReply { result: venus::VkResult::SUCCESS })
}

/// Resets a fence, unless a pending submission is going to signal it.
fn reset_unless_pending(
    call: &Call<'_>,
    device: &Device,
    fence: &Fence,
    command: &'static str,
) -> Result<i32, Fault> {
    let wait = |place: Place| call.have_completed(device, &place.into(), command);
    fence.reset(device, wait, || reset(device, fence.raw))
}

fn reset(device: &Device, fence: vk::Fence) -> i32 {
    // SAFETY: device and fence are live, and no submission is going to signal the fence: the caller has checked this.
    match unsafe { device.ash.reset_fences(&[fence]) } {
        Ok(()) => 0,
        Err(error) => error.as_raw(),
    }
}

/// `vkResetFenceResourceMESA`: once its payload was signalled, the fence becomes unsignalled, as after an export.
pub(crate) fn reset_fence_resource_mesa(
    call: &Call<'_>,
    c: &venus::ResetFenceResourceMESA,
) -> Result<venus::ResetFenceResourceMESAReply, Fault> {
    let device = call.device(c.device)?;
    let fence = call.state_of_owner(c.fence)?;
    let fences = [Arc::clone(&fence)];
    in_slices(u64::MAX, call.cancel, |slice| wait_slice(&device, &fences, true, slice))?;
    reset_unless_pending(call, &device, &fence, "vkResetFences")?;
    Ok(venus::ResetFenceResourceMESAReply {})
}

/// `vkWaitSemaphoreResourceMESA`: consumes the pending signal.
pub(crate) fn wait_semaphore_resource_mesa(
    call: &Call<'_>,
    c: &venus::WaitSemaphoreResourceMESA,
) -> Result<venus::WaitSemaphoreResourceMESAReply, Fault> {
    let device = call.device(c.device)?;
    let semaphores = [vk::Semaphore::from_raw(call.lowering().handle(c.semaphore)?)];
    let submit = move |device: &ash::Device, queue, fence| {
        let stages = [vk::PipelineStageFlags::ALL_COMMANDS];
        let batch = vk::SubmitInfo::default().wait_semaphores(&semaphores).wait_dst_stage_mask(&stages);
        // SAFETY: device, queue, fence and semaphore are live; the queue is locked.
        unsafe { device.queue_submit(queue, &[batch], fence) }
    };
    submit_empty(call, &device, Single::Wait(c.semaphore), submit)?;
    Ok(venus::WaitSemaphoreResourceMESAReply {})
}

/// `vkImportSemaphoreResourceMESA`: the guest has waited for the payload, so the semaphore becomes signalled.
pub(crate) fn import_semaphore_resource_mesa<'a>(
    call: &Call<'a>,
    c: &venus::ImportSemaphoreResourceMESA<'a>,
) -> Result<venus::ImportSemaphoreResourceMESAReply, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_import_semaphore_resource_info else {
        return Err(Fault::without("a semaphore"));
    };
    if info.resource_id != 0 {
        return Err(Fault::rule("a semaphore payload is imported from a resource"));
    }
    signal(call, &device, info.semaphore)?;
    Ok(venus::ImportSemaphoreResourceMESAReply {})
}

/// Signals a binary semaphore by a submission of ours.
pub(super) fn signal(call: &Call<'_>, device: &Arc<Device>, id: venus::Semaphore) -> Result<(), Fault> {
    let semaphores = [vk::Semaphore::from_raw(call.lowering().handle(id)?)];
    let submit = move |device: &ash::Device, queue, fence| {
        let batch = vk::SubmitInfo::default().signal_semaphores(&semaphores);
        // SAFETY: device, queue, fence and semaphore are live; the queue is locked.
        unsafe { device.queue_submit(queue, &[batch], fence) }
    };
    submit_empty(call, device, Single::Signal(id), submit)
}

/// Submits a batch without command buffers to the device's first queue.
fn submit_empty(
    call: &Call<'_>,
    device: &Arc<Device>,
    used: Single,
    submit: impl Fn(&ash::Device, vk::Queue, vk::Fence) -> Result<(), vk::Result> + Send + 'static,
) -> Result<(), Fault> {
    let queue = Queue::first_of(call.context, device)?;
    let groups = groups(&call.lowering().objects, &[used])?;
    // Weak, because the device owns the submissions that wait in its held queues.
    let device = Arc::downgrade(device);
    let submit = move |queue, _: &Range<usize>, fence, _| match device.upgrade() {
        Some(device) => {
            submit(&device.ash, queue, vk::Fence::from_raw(fence)).map_or_else(vk::Result::as_raw, |()| 0)
        }
        None => vk::Result::ERROR_DEVICE_LOST.as_raw(),
    };
    let result = queue.submit_free(call, groups, Box::new(submit))?;
    if result < 0 { Err(Fault::Failed(result)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_time_of_a_wait_goes_on_while_it_is_interrupted_and_is_another_waits_no_more() {
        let cancel = Cancel::default();
        let (timeout, rounds) = (3 * WAIT_SLICE_NS, 20);
        let interrupted = |slice| {
            std::thread::sleep(Duration::from_nanos(slice));
            cancel.interrupt();
            vk::Result::TIMEOUT.as_raw()
        };
        let mut waits = (0..rounds).map(|_| {
            let waited = in_slices(timeout, &cancel, interrupted);
            cancel.resume();
            waited.ok()
        });
        assert_eq!(waits.find_map(|waited| waited), Some(vk::Result::TIMEOUT.as_raw()));
        let now = Instant::now();
        assert!(cancel.begins() >= now, "another wait has all of its time");
    }
}
