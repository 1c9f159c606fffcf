//! Commands of a queue.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::prepare::{prepare_submit, prepare_submit2, submitted};
use crate::context::error::Fault;
use crate::driver::generated::sys;
use crate::execution::call::Call;
use crate::logical::timeline::Timeline as _;
use ash::vk::{self, Handle as _};
use protocol::venus::generated as venus;

/// `vkQueueSubmit`.
pub(crate) fn queue_submit<'a>(
    call: &Call<'a>,
    c: &venus::QueueSubmit<'a>,
) -> Result<venus::QueueSubmitReply, Fault> {
    let queue = call.subject(c.queue)?;
    let device = queue.device()?;
    let Some(function) = device.table.queue_submit else { return Err(Fault::missing("vkQueueSubmit")) };
    let result = queue.submit_command::<venus::QueueSubmit<'static>, _>(
        call,
        c,
        &prepare_submit,
        move |raw: vk::Queue, batches: &[sys::SubmitInfo], fence| {
            // SAFETY: all handles are live, so are the batches and the objects that they name, and the queue is locked.
            unsafe { function(raw.as_raw(), batches.len() as u32, batches.as_ptr(), fence) }
        },
    )?;
    Ok(venus::QueueSubmitReply { result: submitted(result)? })
}

/// `vkQueueSubmit2`.
pub(crate) fn queue_submit2<'a>(
    call: &Call<'a>,
    c: &venus::QueueSubmit2<'a>,
) -> Result<venus::QueueSubmit2Reply, Fault> {
    let queue = call.subject(c.queue)?;
    let device = queue.device()?;
    let Some(function) = device.table.queue_submit2 else { return Err(Fault::missing("vkQueueSubmit2")) };
    let result = queue.submit_command::<venus::QueueSubmit2<'static>, _>(
        call,
        c,
        &prepare_submit2,
        move |raw: vk::Queue, batches: &[sys::SubmitInfo2], fence| {
            // SAFETY: all handles are live, so are the batches and the objects that they name, and the queue is locked.
            unsafe { function(raw.as_raw(), batches.len() as u32, batches.as_ptr(), fence) }
        },
    )?;
    Ok(venus::QueueSubmit2Reply { result: submitted(result)? })
}

/// `vkQueueWaitIdle`. Mesa never sends it.
pub(crate) fn queue_wait_idle(
    call: &Call<'_>,
    c: &venus::QueueWaitIdle,
) -> Result<venus::QueueWaitIdleReply, Fault> {
    call.subject(c.queue)?.wait_idle(call.cancel)?;
    Ok(venus::QueueWaitIdleReply { result: venus::VkResult::SUCCESS })
}
