//! Queues of the null driver: a submission completes at once, runs nothing, and signals its fence and timelines.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::addresses::for_each;
use super::state::{self, Kind};
use ash::vk::{self, Handle as _};

/// `vkQueueSubmit`.
pub(super) unsafe extern "system" fn submit(
    queue: u64,
    count: u32,
    submits: *const vk::SubmitInfo<'static>,
    fence: u64,
) -> i32 {
    begin(queue, fence);
    let count = if state::is_trusting() { 0 } else { count as usize };
    for at in 0..count {
        // SAFETY: callers pass `count` descriptions.
        let submit = unsafe { *submits.add(at) };
        let mut values: &[u64] = &[];
        // SAFETY: callers pass as many handles and values as each description says.
        unsafe {
            let buffers = all(submit.p_command_buffers, submit.command_buffer_count);
            let waits = all(submit.p_wait_semaphores, submit.wait_semaphore_count);
            let signals = all(submit.p_signal_semaphores, submit.signal_semaphore_count);
            for_each(submit.p_next, |s_type, at| {
                if s_type == vk::StructureType::TIMELINE_SEMAPHORE_SUBMIT_INFO {
                    let info = &*at.cast::<vk::TimelineSemaphoreSubmitInfo<'_>>();
                    values = all(info.p_signal_semaphore_values, info.signal_semaphore_value_count);
                }
            });
            buffers.iter().for_each(|buffer| runs(queue, *buffer));
            waits.iter().for_each(|wait| state::assert_of(queue, wait.as_raw(), Kind::Semaphore));
            let values = values.iter().copied().chain(std::iter::repeat(0));
            signals.iter().zip(values).for_each(|(semaphore, value)| signals_to(queue, *semaphore, value));
        }
    }
    end(fence)
}

/// `vkQueueSubmit2`.
pub(super) unsafe extern "system" fn submit2(
    queue: u64,
    count: u32,
    submits: *const vk::SubmitInfo2<'static>,
    fence: u64,
) -> i32 {
    begin(queue, fence);
    let count = if state::is_trusting() { 0 } else { count as usize };
    for at in 0..count {
        // SAFETY: callers pass `count` descriptions, and as many command buffers and semaphores as each says.
        let (buffers, signals) = unsafe {
            let submit = *submits.add(at);
            let signals = all(submit.p_signal_semaphore_infos, submit.signal_semaphore_info_count);
            (all(submit.p_command_buffer_infos, submit.command_buffer_info_count), signals)
        };
        buffers.iter().for_each(|info| runs(queue, info.command_buffer));
        signals.iter().for_each(|info| signals_to(queue, info.semaphore, info.value));
    }
    end(fence)
}

/// Returns an array of C.
///
/// # Safety
///
/// There are `count` values behind `first`, which live for as long as the caller uses the array.
unsafe fn all<'v, T>(first: *const T, count: u32) -> &'v [T] {
    match count {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(first, count as usize) },
    }
}

fn begin(queue: u64, fence: u64) {
    state::assert_live(queue, Some(Kind::Queue as u8));
    if fence != 0 {
        state::assert_of(queue, fence, Kind::Fence);
    }
}

fn runs(queue: u64, buffer: vk::CommandBuffer) {
    state::assert_of(queue, buffer.as_raw(), Kind::CommandBuffer);
    state::runs();
}

/// Signals a semaphore; the value of a binary semaphore is 0.
fn signals_to(queue: u64, semaphore: vk::Semaphore, value: u64) {
    state::assert_of(queue, semaphore.as_raw(), Kind::Semaphore);
    if value > state::counter(semaphore.as_raw()) && !state::is_stalled() {
        state::set_counter(semaphore.as_raw(), value);
    }
}

/// Completes a submission at once, unless submissions are stalled or the device is lost.
fn end(fence: u64) -> i32 {
    if state::failure().is_some() {
        return vk::Result::ERROR_DEVICE_LOST.as_raw();
    }
    if fence != 0 {
        state::set_signalled(fence, true);
    }
    0
}
