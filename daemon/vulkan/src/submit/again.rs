//! Submissions of a journal, done again by a successor: fences, semaphores and command buffers become as they were, and nothing is computed.
//!
//! All of these submissions had completed. They reach the driver without command buffers, and past the scheduler's gate: they take no GPU time.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::order::batches::{Batch, Group, Groups};
use super::order::queue_order::Calling;
use super::prepare::{Prepared, mark, prepare_submit, prepare_submit2, submitted};
use super::queue::Queue;
use super::{lost, state_query};
use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::execution::context::Context;
use crate::kinds::semaphore::Signal;
use crate::logical::timeline::Standing;
use ash::vk::{self, Handle as _};
use protocol::venus::generated as venus;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The longest wait for submissions that compute nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest wait for a value of a timeline whose signal has completed.
const COUNTER_PATIENCE: Duration = Duration::from_secs(1);

/// Time between two looks at the queues.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// The time for which queues are polled without a pause: most submissions that compute nothing end by then, and a journal may have tens of thousands.
const LOOK_AT_ONCE: Duration = Duration::from_micros(50);

/// The number of looks in a row that must find no queue able to go on before this counts as final: a submission for which one queue waits may
/// complete on another queue between the looks at the two.
const LOOKS: u32 = 3;

/// Does a `vkQueueSubmit` again.
///
/// # Errors
///
/// The submission fails, which it did not do before.
pub(crate) fn queue_submit<'a>(call: &Call<'a>, c: &venus::QueueSubmit<'a>) -> Result<(), Fault> {
    let queue = call.subject(c.queue)?;
    let device = queue.device()?;
    let Some(function) = device.table.queue_submit else { return Err(Fault::missing("vkQueueSubmit")) };
    let batches = c.p_submits.unwrap_or(&[]);
    let idle = call.arena.slice_try_fill(batches.len(), |at| idle(call, &batches[at]))?;
    let prepared =
        prepare_submit(call, queue.family, &device, &venus::QueueSubmit { p_submits: Some(&*idle), ..*c })?;
    submit(call, &queue, batches, prepared, |raw, batches, count, fence| {
        // SAFETY: all handles are live, so are the batches and the objects that they name, and the queue is locked.
        unsafe { function(raw.as_raw(), count, batches, fence) }
    })
}

/// Does a `vkQueueSubmit2` again.
///
/// # Errors
///
/// The submission fails, which it did not do before.
pub(crate) fn queue_submit2<'a>(call: &Call<'a>, c: &venus::QueueSubmit2<'a>) -> Result<(), Fault> {
    let queue = call.subject(c.queue)?;
    let device = queue.device()?;
    let Some(function) = device.table.queue_submit2 else { return Err(Fault::missing("vkQueueSubmit2")) };
    let batches = c.p_submits.unwrap_or(&[]);
    let idle = |batch: &venus::SubmitInfo2<'a>| venus::SubmitInfo2 {
        command_buffer_info_count: 0,
        p_command_buffer_infos: None,
        ..*batch
    };
    let idle = call.arena.slice_copy(&batches.iter().map(idle).collect::<Vec<_>>())?;
    let prepared =
        prepare_submit2(call, queue.family, &device, &venus::QueueSubmit2 { p_submits: Some(&*idle), ..*c })?;
    submit(call, &queue, batches, prepared, |raw, batches, count, fence| {
        // SAFETY: as above.
        unsafe { function(raw.as_raw(), count, batches, fence) }
    })
}

/// Returns a batch without its command buffers.
fn idle<'a>(call: &Call<'a>, batch: &venus::SubmitInfo<'a>) -> Result<venus::SubmitInfo<'a>, Fault> {
    let p_next = lost::without_masks(call, batch.p_next)?;
    Ok(venus::SubmitInfo { p_next, command_buffer_count: 0, p_command_buffers: None, ..*batch })
}

/// Submits the prepared form of `batches`, and counts their command buffers as submitted.
fn submit<T>(
    call: &Call<'_>,
    queue: &Queue,
    batches: &[impl Batch],
    (mut groups, idle, fence): Prepared<T>,
    function: impl Fn(vk::Queue, *const T, u32, u64) -> i32,
) -> Result<(), Fault> {
    take_command_buffers(&mut groups, batches);
    let mut submit = |raw, range: &Range<usize>, fence, _| {
        function(raw, idle.wrapping_add(range.start), range.len() as u32, fence)
    };
    let mark = |group: &_, place| mark(call, group, place);
    let device = queue.device()?;
    let calling = Calling { context: call.context, device: &device, groups, fence, mark };
    let result = queue.submit_now(&calling, &mut submit)?;
    match submitted(result)?.0 {
        failed if failed < 0 => Err(Fault::Failed(failed)),
        _ => Ok(()),
    }
}

/// Names in each group the command buffers that its batches had.
fn take_command_buffers(groups: &mut Groups, batches: &[impl Batch]) {
    let take = |group: &mut Group| {
        group.is_free = true;
        group.command_buffers =
            batches[group.batches.clone()].iter().flat_map(Batch::command_buffers).collect();
    };
    groups.iter_mut().for_each(take);
}

/// Waits until no submission of the context can go on: each has completed, or waits for a semaphore that is not signalled yet. Returns the
/// state of the queues: [`Standing::Going`] if this takes longer than [`PATIENCE`].
pub(crate) fn settle(context: &Context) -> Standing {
    let (start, mut still) = (Instant::now(), 0);
    loop {
        let queues = context.timelines.all();
        // All are refreshed first, because queues wait for each other.
        queues.iter().for_each(|queue| queue.refresh());
        let standings: Vec<_> = queues.iter().map(|queue| queue.standing()).collect();
        still = if standings.contains(&Standing::Going) { 0 } else { still + 1 };
        if standings.iter().all(|standing| *standing == Standing::Idle) {
            return Standing::Idle;
        }
        let passed = start.elapsed();
        if passed < LOOK_AT_ONCE {
            still = 0;
            std::thread::yield_now();
            continue;
        }
        if still >= LOOKS {
            return Standing::Waits;
        }
        if passed > PATIENCE {
            return Standing::Going;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits until all submissions of the context have completed, as they had before: a driver may report that a submission has completed before its
/// semaphore has the value for which another waits. Returns whether all have completed within [`PATIENCE`].
pub(crate) fn complete(context: &Context) -> bool {
    let start = Instant::now();
    loop {
        match settle(context) {
            Standing::Idle => return true,
            Standing::Waits if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(1)),
            Standing::Waits | Standing::Going => return false,
        }
    }
}

/// Waits until a timeline semaphore that the host is about to signal has the value that completed submissions have signalled: a driver may report
/// their completion before the semaphore has that value.
pub(crate) fn await_counter(call: &Call<'_>, c: &venus::SignalSemaphore<'_>) -> Result<(), Fault> {
    let Some(info) = c.p_signal_info else { return Ok(()) };
    let signal = call.state(info.semaphore)?;
    let device = call.device(c.device)?;
    let raw = call.lowering().handle(info.semaphore)?;
    let promised = match &*signal.lock() {
        // A submission that promises a value beyond the new one waits for the host's signal.
        Signal::Timeline { promised } if *promised < info.value => *promised,
        _ => return Ok(()),
    };
    let start = Instant::now();
    while state_query::counter(&device, raw).is_some_and(|value| value < promised) {
        if start.elapsed() > COUNTER_PATIENCE {
            // The program has broken valid usage: the submission that signals the value still waits.
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
