//! Command buffers: their life cycle (Vulkan 6.1), and one recorder at a time for each pool.
//!
//! Drivers record into memory of the pool without a lock, so a thread that records, resets or frees holds the pool's lock while the driver
//! is called. A command buffer that names an object whose creation failed is *spoilt*: the rest of its recording is skipped and it
//! never reaches a queue. Beginning or resetting it heals it.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::recorder::Recorder;
use crate::context::cause::Cause;
use crate::context::error::{Fault, INVALID};
use crate::execution::call::Call;
use crate::kinds::command_buffer::{Bound, CommandBuffer, Recording, RecordingState, Stage, recordings_of};
use crate::kinds::query::Touched;
use crate::logical::submitted::Place;
use crate::objects::usage::Uses;
use crate::programs::notices::Success;
use crate::validity::buffers;
use protocol::venus::generated as venus;
use std::sync::Arc;

/// Brings a recording back to the initial state, in which it is not spoilt. Recordings that execute a secondary as it was can no longer be submitted.
///
/// # Errors
///
/// The command buffer is gone.
pub(crate) fn restart(call: &Call<'_>, recording: &mut Recording) -> Result<(), Fault> {
    recording.uses.clear();
    recording.commands.restart();
    let RecordingState { secondary, most_groups, .. } = recording.state;
    recording.state = RecordingState { secondary, most_groups, ..RecordingState::default() };
    if secondary {
        let fresh = Arc::new(recording.usage.again());
        recording.usage.end();
        recording.usage = Arc::clone(&fresh);
        call.context.objects.update(venus::CommandBuffer(recording.id), |object| object.usage = fresh)?;
    }
    Ok(())
}

/// Marks a command buffer that names a tombstone: it must never reach the driver's queue. A command that breaks valid usage is only left out.
pub(crate) fn spoil(call: &Call<'_>, id: venus::CommandBuffer, result: i32) {
    if result == INVALID {
        return;
    }
    // A command buffer that does not exist has nothing to spoil: it was reported when it was looked up.
    let Ok(command_buffer) = call.subject(id) else { return };
    if let Ok(recording) = command_buffer.pool.lock().find(&command_buffer) {
        recording.state.spoilt = Some(result);
    }
}

/// `vkBeginCommandBuffer`.
pub(crate) fn begin_command_buffer<'a>(
    call: &Call<'a>,
    c: &venus::BeginCommandBuffer<'a>,
) -> Result<venus::BeginCommandBufferReply, Fault> {
    let command_buffer = call.subject(c.command_buffer)?;
    let Some(info) = c.p_begin_info else {
        return Err(Fault::without("a description"));
    };
    let mut recordings = command_buffer.pool.lock();
    let recording = recordings.find(&command_buffer)?;
    if recording.state.secondary && info.p_inheritance_info.is_none() {
        return Err(Fault::invalid("a secondary command buffer begins without inheritance"));
    }
    call.await_submitted(&command_buffer.device, &recording.usage.submitted(), "vkBeginCommandBuffer")?;
    restart(call, recording)?;
    let one_time = info.flags.contains(venus::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
    let info = match recording.state.secondary {
        true => *info,
        // Vulkan ignores this pointer, so the driver does not get it.
        false => venus::CommandBufferBeginInfo { p_inheritance_info: None, ..*info },
    };
    let info = call.recording(&recording.uses).pointer(Some(&info))?;
    let Some(function) = command_buffer.device.table.begin_command_buffer else {
        return Err(Fault::missing("vkBeginCommandBuffer"));
    };
    // SAFETY: the command buffer is live and its pool is locked, `info` and what it points to live in the arena.
    let result = unsafe { function(command_buffer.raw, info) };
    if result == 0 {
        recording.state.stage = Stage::Recording;
        recording.state.one_time = one_time;
        recording.commands.append_one(call.bytes);
    }
    Ok(venus::BeginCommandBufferReply { result: venus::VkResult(result) })
}

/// `vkEndCommandBuffer`.
pub(crate) fn end_command_buffer(
    call: &Call<'_>,
    c: &venus::EndCommandBuffer,
) -> Result<venus::EndCommandBufferReply, Fault> {
    let command_buffer = call.subject(c.command_buffer)?;
    let mut recordings = command_buffer.pool.lock();
    let recording = recordings.open(&command_buffer)?;
    let Some(function) = command_buffer.device.table.end_command_buffer else {
        return Err(Fault::missing("vkEndCommandBuffer"));
    };
    // SAFETY: the command buffer is live and its pool is locked.
    let result = unsafe { function(command_buffer.raw) };
    if result == 0 {
        recording.state.stage = Stage::Executable;
        recording.commands.append_one(call.bytes);
    }
    Ok(venus::EndCommandBufferReply { result: venus::VkResult(result) })
}

/// `vkResetCommandBuffer`.
pub(crate) fn reset_command_buffer(
    call: &Call<'_>,
    c: &venus::ResetCommandBuffer,
) -> Result<venus::ResetCommandBufferReply, Fault> {
    let command_buffer = call.subject(c.command_buffer)?;
    let mut recordings = command_buffer.pool.lock();
    let recording = recordings.find(&command_buffer)?;
    call.await_submitted(&command_buffer.device, &recording.usage.submitted(), "vkResetCommandBuffer")?;
    restart(call, recording)?;
    let Some(function) = command_buffer.device.table.reset_command_buffer else {
        return Err(Fault::missing("vkResetCommandBuffer"));
    };
    // SAFETY: the command buffer is live, not pending, and its pool is locked.
    let result = unsafe { function(command_buffer.raw, c.flags.0) };
    Ok(venus::ResetCommandBufferReply { result: venus::VkResult(result) })
}

/// Marks a command buffer and all that it names as part of a submission.
///
/// A command buffer that is spoilt or not ended must not run: its work is lost, and the guest sees a lost device.
pub(crate) fn submit(call: &Call<'_>, id: venus::CommandBuffer, place: Place) -> Result<(), Fault> {
    let command_buffer = call.subject(id)?;
    let mut recordings = command_buffer.pool.lock();
    let recording = recordings.find(&command_buffer)?;
    if let Some(result) = recording.state.spoilt {
        return Err(Cause::Unmade(result).into());
    }
    if recording.state.stage != Stage::Executable || recording.state.secondary {
        return Err(Fault::rule("a submitted command buffer is not executable"));
    }
    recording.usage.submit(place);
    if !recording.uses.submit(place) {
        return Err(Fault::rule("a submitted command buffer uses an object that was destroyed"));
    }
    recording.state.was_submitted = true;
    recording.state.touched.forget_results();
    Ok(())
}

/// `vkCmdFillBuffer`: the fill is noted if it may be the one that Mesa before 26.2 records for each fence.
pub(crate) fn cmd_fill_buffer(r: &mut Recorder<'_>, c: &venus::CmdFillBuffer) -> Result<(), Fault> {
    let (CommandBuffer { raw, device, .. }, context) = (r.command_buffer, r.context);
    let Some(function) = device.table.cmd_fill_buffer else {
        return Err(Fault::missing("vkCmdFillBuffer"));
    };
    let (l, state) = r.lowering();
    buffers::cmd_fill_buffer(&l, c)?;
    let (buffer, word) = (l.handle(c.dst_buffer)?, l.objects.buffer(c.dst_buffer)?.place(c.dst_offset));
    // SAFETY: command buffer and buffer are live, the pool is locked.
    unsafe { function(*raw, buffer, c.dst_offset, c.size, c.data) };
    if (c.size, c.data) == (4, 0) {
        state.telling = Some((buffer, c.dst_offset));
        state.told = word.and_then(|(memory, offset)| context.env.results.as_ref()?.tell((memory.0, offset)));
    }
    Ok(())
}

/// Returns the host's handle of a command buffer to run on a device that is lost for the guest, and the place where it tells the guest of success;
/// none if it cannot run.
pub(crate) fn runs(
    call: &Call<'_>,
    id: venus::CommandBuffer,
) -> Result<Option<(u64, Option<Success>)>, Fault> {
    let command_buffer = match call.subject(id) {
        Err(Fault::Failed(_)) => return Ok(None),
        found => found?,
    };
    let mut recordings = command_buffer.pool.lock();
    let Ok(recording) = recordings.find(&command_buffer) else { return Ok(None) };
    let state = &recording.state;
    let sound = state.spoilt.is_none() && state.stage == Stage::Executable && recording.uses.is_alive();
    Ok(sound.then_some((command_buffer.raw, state.telling)))
}

/// Refuses a command buffer that names a tombstone: it must not run, so its work is lost, and the guest sees a lost device. For other command buffers
/// this returns whether programs learn of their progress ([`Uses::set_heard`]).
///
/// # Errors
///
/// The command buffer was recorded for queues that can do more than a queue with the flags `able`.
pub(crate) fn refuse_unfit(
    call: &Call<'_>,
    id: venus::CommandBuffer,
    able: venus::QueueFlags,
) -> Result<bool, Fault> {
    let command_buffer = call.subject(id)?;
    if !able.contains(command_buffer.pool.queue_flags) {
        return Err(Fault::rule(
            "a command buffer is submitted to a queue that can do less than those of the command buffer's family",
        ));
    }
    let mut recordings = command_buffer.pool.lock();
    let recording = recordings.find(&command_buffer)?;
    match recording.state.spoilt {
        Some(result) => Err(Fault::Failed(result)),
        None => Ok(recording.uses.is_heard()),
    }
}

/// `vkCmdExecuteCommands`: the pools of all command buffers are locked, in one order for all threads.
pub(crate) fn cmd_execute_commands<'a>(
    call: &Call<'a>,
    c: &venus::CmdExecuteCommands<'a>,
) -> Result<venus::CmdExecuteCommandsReply, Fault> {
    let primary = call.subject(c.command_buffer)?;
    let ids = c.p_command_buffers.unwrap_or(&[]).iter();
    let secondaries = ids.map(|id| call.subject(*id)).collect::<Result<Vec<_>, _>>()?;
    if secondaries.iter().any(|secondary| !Arc::ptr_eq(&secondary.device, &primary.device)) {
        return Err(Fault::invalid("an object of another device"));
    }
    let mut pools: Vec<_> = secondaries.iter().chain([&primary]).map(|buffer| &buffer.pool).collect();
    pools.sort_by_key(|pool| Arc::as_ptr(pool));
    pools.dedup_by_key(|pool| Arc::as_ptr(pool));
    let mut locked: Vec<_> = pools.iter().map(|pool| (Arc::as_ptr(pool), pool.lock())).collect();
    let (named, mut touched) = (Uses::default(), Touched::default());
    for secondary in &secondaries {
        let recording = recordings_of(&mut locked, &secondary.pool)?.find(secondary)?;
        match (recording.state.stage, recording.state.spoilt, recording.state.secondary) {
            (_, Some(result), _) => return Err(Fault::Failed(result)),
            (Stage::Executable, None, true) => named.add_all(&recording.uses),
            _ => {
                return Err(Fault::invalid(
                    "vkCmdExecuteCommands with a command buffer that is no executable secondary one",
                ));
            }
        }
        named.add(&recording.usage);
        touched.add_all(&recording.state.touched);
    }
    let recording = recordings_of(&mut locked, &primary.pool)?.open(&primary)?;
    recording.uses.add_all(&named);
    recording.state.touched.add_all(&touched);
    // Bound state is undefined behind this command.
    recording.state.bound = Bound::default();
    let raws: Vec<u64> = secondaries.iter().map(|secondary| secondary.raw).collect();
    let Some(function) = primary.device.table.cmd_execute_commands else {
        return Err(Fault::missing("vkCmdExecuteCommands"));
    };
    // SAFETY: all command buffers are live, their pools are locked, and `raws` lives until the call returns.
    unsafe { function(primary.raw, raws.len() as u32, raws.as_ptr()) };
    recording.commands.append_one(call.bytes);
    Ok(venus::CmdExecuteCommandsReply {})
}
