//! Fences and semaphores: waits in slices, and SYNC_FD payloads emulated where Mesa before 26.2 needs them.
//!
//! A guest's sync file lives in the guest's kernel. What reaches the host is only "the payload was taken out" (after an export)
//! and "the payload is signalled already" (before an import); both are answered with empty submissions or a wait, so that no
//! support of the host's driver is needed.

use super::batches::{Single, groups};
use super::call::{Call, inconsistent};
use super::cancel::Cancel;
use super::device::Device;
use super::error::Fault;
use super::objects::State;
use super::pending::Fence;
use super::queue::WAIT_SLICE_NS;
use super::submission::Signal;
use super::validity::semaphores;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use protocol::venus::generated::ChainStruct;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Calls `wait` with slices of `timeout` nanoseconds until it is done, the time is over or the wait is cancelled.
fn in_slices(timeout: u64, cancel: &Cancel, mut wait: impl FnMut(u64) -> i32) -> Result<i32, Fault> {
    let start = Instant::now();
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
        if cancel.is_cancelled() {
            return Err(vk::Result::ERROR_DEVICE_LOST.into());
        }
    }
}

/// `vkWaitForFences`.
pub fn wait_for_fences<'a>(
    call: &Call<'a>,
    c: &venus::WaitForFences<'a>,
) -> Result<venus::WaitForFencesReply, Fault> {
    let device = call.device(c.device)?;
    let fences = call.lowering().handles(c.p_fences)?;
    let Some(function) = device.table.wait_for_fences else { return Err(Fault::missing("vkWaitForFences")) };
    let result = in_slices(c.timeout, call.cancel, |slice| {
        // SAFETY: the device is live, `fences` has `fence_count` live handles in the arena.
        unsafe { function(device.raw(), c.fence_count, fences, c.wait_all, slice) }
    })?;
    Ok(venus::WaitForFencesReply { result: venus::VkResult(result) })
}

/// `vkWaitSemaphores`.
pub fn wait_semaphores<'a>(
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
pub fn create_semaphore<'a>(
    call: &Call<'a>,
    c: &venus::CreateSemaphore<'a>,
) -> Result<venus::CreateSemaphoreReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::lost("vkCreateSemaphore without a description"));
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
    let signal = if is_timeline { Signal::Timeline } else { Signal::Binary(None) };
    call.bind(c.p_semaphore, raw, &device, result, State::Semaphore(Arc::new(Mutex::new(signal))))?;
    Ok(venus::CreateSemaphoreReply { result: venus::VkResult(result), p_semaphore: c.p_semaphore })
}

/// `vkCreateFence`: without the request to be exportable.
pub fn create_fence<'a>(
    call: &Call<'a>,
    c: &venus::CreateFence<'a>,
) -> Result<venus::CreateFenceReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else { return Err(Fault::lost("vkCreateFence without a description")) };
    let mut stripped = *info;
    stripped.p_next = &[];
    let lowered = call.lowering().pointer(Some(&stripped))?;
    call.renderer.note_host_fence();
    let Some(function) = device.table.create_fence else { return Err(Fault::missing("vkCreateFence")) };
    let mut raw = 0u64;
    // SAFETY: the device is live, `lowered` lives in the arena.
    let result = unsafe { function(device.raw(), lowered, std::ptr::null(), &raw mut raw) };
    let fence = Fence::new(vk::Fence::from_raw(raw));
    call.bind(c.p_fence, raw, &device, result, State::Fence(Arc::new(fence)))?;
    Ok(venus::CreateFenceReply { result: venus::VkResult(result), p_fence: c.p_fence })
}

/// The fence that an id names.
fn fence(call: &Call<'_>, id: venus::Fence) -> Result<Arc<Fence>, Fault> {
    let l = call.lowering();
    l.handle(id)?;
    match &l.objects.get(id)?.state {
        State::Fence(fence) => Ok(fence.clone()),
        _ => Err(inconsistent()),
    }
}

/// `vkResetFences`.
pub fn reset_fences<'a>(
    call: &Call<'a>,
    c: &venus::ResetFences<'a>,
) -> Result<venus::ResetFencesReply, Fault> {
    let device = call.device(c.device)?;
    for id in c.p_fences.unwrap_or(&[]) {
        let fence = fence(call, *id)?;
        let result = fence.reset(&device, call.cancel, || reset(&device, fence.raw))?;
        if result < 0 {
            return Ok(venus::ResetFencesReply { result: venus::VkResult(result) });
        }
    }
    Ok(venus::ResetFencesReply { result: venus::VkResult::SUCCESS })
}

fn reset(device: &Device, fence: vk::Fence) -> i32 {
    // SAFETY: device and fence are live, and no submission is going to signal the fence: that was looked at before.
    match unsafe { device.ash.reset_fences(&[fence]) } {
        Ok(()) => 0,
        Err(error) => error.as_raw(),
    }
}

/// `vkResetFenceResourceMESA`: the fence is as after an export, unsignalled, once its payload was signalled.
pub fn reset_fence_resource_mesa(
    call: &Call<'_>,
    c: &venus::ResetFenceResourceMESA,
) -> Result<venus::ResetFenceResourceMESAReply, Fault> {
    let device = call.device(c.device)?;
    let fence = fence(call, c.fence)?;
    in_slices(u64::MAX, call.cancel, |slice| {
        // SAFETY: device and fence are live.
        match unsafe { device.ash.wait_for_fences(&[fence.raw], true, slice) } {
            Ok(()) => 0,
            Err(error) => error.as_raw(),
        }
    })?;
    fence.reset(&device, call.cancel, || reset(&device, fence.raw))?;
    Ok(venus::ResetFenceResourceMESAReply {})
}

/// `vkWaitSemaphoreResourceMESA`: consumes the pending signal.
pub fn wait_semaphore_resource_mesa(
    call: &Call<'_>,
    c: &venus::WaitSemaphoreResourceMESA,
) -> Result<venus::WaitSemaphoreResourceMESAReply, Fault> {
    let device = call.device(c.device)?;
    let semaphores = [vk::Semaphore::from_raw(call.lowering().handle(c.semaphore)?)];
    let stages = [vk::PipelineStageFlags::ALL_COMMANDS];
    let batch = vk::SubmitInfo::default().wait_semaphores(&semaphores).wait_dst_stage_mask(&stages);
    submit_empty(call, &device, Single::Wait(c.semaphore), &batch)?;
    Ok(venus::WaitSemaphoreResourceMESAReply {})
}

/// `vkImportSemaphoreResourceMESA`: the payload was waited for in the guest, so the semaphore becomes signalled.
pub fn import_semaphore_resource_mesa<'a>(
    call: &Call<'a>,
    c: &venus::ImportSemaphoreResourceMESA<'a>,
) -> Result<venus::ImportSemaphoreResourceMESAReply, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_import_semaphore_resource_info else {
        return Err(Fault::lost("vkImportSemaphoreResourceMESA without a semaphore"));
    };
    if info.resource_id != 0 {
        return Err(Fault::lost("a semaphore payload from a resource"));
    }
    let semaphores = [vk::Semaphore::from_raw(call.lowering().handle(info.semaphore)?)];
    let batch = vk::SubmitInfo::default().signal_semaphores(&semaphores);
    submit_empty(call, &device, Single::Signal(info.semaphore), &batch)?;
    Ok(venus::ImportSemaphoreResourceMESAReply {})
}

/// Submits a batch without command buffers to the device's first queue.
fn submit_empty(
    call: &Call<'_>,
    device: &Arc<Device>,
    used: Single,
    batch: &vk::SubmitInfo<'_>,
) -> Result<(), Fault> {
    let queue = device.queues.lock().first().cloned();
    let Some(queue) = queue else { return Err(Fault::lost("a device without queues")) };
    let groups = groups(&call.renderer.objects.read(), &[used])?;
    let result = queue.submit(
        call.renderer,
        &groups,
        None,
        |_| Ok(()),
        |raw, _, fence| {
            let (batch, fence) = (std::slice::from_ref(batch), vk::Fence::from_raw(fence));
            // SAFETY: device, queue, fence and the batch's semaphores are live; the queue is locked.
            let submitted = unsafe { device.ash.queue_submit(raw, batch, fence) };
            submitted.map_or_else(vk::Result::as_raw, |()| 0)
        },
    )?;
    if result < 0 { Err(Fault::Failed(result)) } else { Ok(()) }
}
