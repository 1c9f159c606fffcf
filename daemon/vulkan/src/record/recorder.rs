//! Recorded commands on their way into one command buffer, alone or as a *run*: commands that follow each other in a stream.
//!
//! Programs record thousands of commands into one command buffer before another, and Mesa sends them at once. The command buffer, its pool and the
//! table of objects are found and locked once for a run. The objects that each command names are looked up and checked each time.
//!
//! Lock order: the pool, then the table. The pool stays locked from the first command of a run to its last, so no other thread frees, resets, begins
//! or ends the command buffer between two of them. The table stays locked for reading, also while the driver records, except that a thread that waits
//! to change the table gets it between two commands; the next command sees the change.

use crate::context::cancel::Cancel;
use crate::context::error::{ContextLost, Fault, INVALID};
use crate::execution::call::Call;
use crate::execution::context::Context;
use crate::kinds::command_buffer::{CommandBuffer, Recording, RecordingState};
use crate::lowering::lower::Lowering;
use crate::objects::reading::{Reading, Recent};
use crate::objects::table::Table;
use protocol::cursor::{Arena, Reader};
use protocol::venus::generated as venus;
use protocol::venus::stream::Recorded;
use std::sync::Arc;

/// The recorder of one command: its command buffer, open and locked, and the objects that the command may name.
pub(crate) struct Recorder<'r> {
    /// The command buffer.
    pub command_buffer: &'r CommandBuffer,
    /// The context's Vulkan side.
    pub context: &'r Context,
    recording: &'r mut Recording,
    objects: &'r Recent<'r>,
    arena: &'r Arena,
}

/// A function that decodes a command, behind its number and flags, and records it.
pub(crate) type Record = fn(&mut Recorder<'_>, &mut Reader<'_>) -> Result<(), Fault>;

impl Recorder<'_> {
    /// Demands that the queues of the command buffer's family can do one of these. Drivers that are given anything else hang or crash.
    ///
    /// # Errors
    ///
    /// The queues cannot: the command breaks valid usage.
    #[inline]
    pub(crate) fn demand_queue(&self, one_of: venus::QueueFlags) -> Result<(), Fault> {
        match self.command_buffer.pool.queue_flags.intersects(one_of) {
            true => Ok(()),
            false => {
                Err(Fault::invalid("a command that no queue of the command buffer's family can execute"))
            }
        }
    }

    /// Returns the lowering of the command's parameters, so that they count as named by the recording, and the state of what was recorded
    /// before.
    #[inline]
    pub(crate) fn lowering(&mut self) -> (Lowering<'_>, &mut RecordingState) {
        let (Recording { uses, state, .. }, device) = (&mut *self.recording, &self.command_buffer.device);
        let lowering = Lowering {
            objects: Reading::Shared(self.objects),
            arena: self.arena,
            memory: self.context.env.memory(),
            owner: Some(Arc::as_ptr(device)),
            families: device.physical.order,
            uses: Some(uses),
        };
        (lowering, state)
    }
}

/// Records one command that came by itself.
///
/// # Errors
///
/// The stream is wrong. A command that is only refused leaves the recording as it is, or spoilt.
pub(crate) fn record_one(
    call: &Call<'_>,
    id: venus::CommandBuffer,
    record: impl FnOnce(&mut Recorder<'_>) -> Result<(), Fault>,
) -> Result<(), ContextLost> {
    call.records.set(true);
    let Some(command_buffer) = allowed(call.subject(id))? else { return Ok(()) };
    let mut recordings = command_buffer.pool.lock();
    let Some(recording) = allowed(recordings.open(&command_buffer))? else { return Ok(()) };
    let objects = call.context.objects.read();
    let mut recorder = Recorder {
        command_buffer: &command_buffer,
        context: call.context,
        recording,
        objects: &Recent::of(&objects),
        arena: call.arena,
    };
    let outcome = record(&mut recorder);
    if settle(outcome, recording)? == Settled::Recorded {
        recording.commands.append_one(call.bytes);
    }
    Ok(())
}

/// Turns a refusal into none: the command buffer was never made, or cannot be recorded into, so there is nothing to spoil.
fn allowed<T>(outcome: Result<T, Fault>) -> Result<Option<T>, ContextLost> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(Fault::Failed(_)) => Ok(None),
        Err(Fault::Lost(lost)) => Err(lost),
    }
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    /// The command is recorded, or the recording is spoilt.
    Recorded,
    /// The command is no part of the recording, which may outlive the objects that the command names.
    LeftOut,
}

/// Spoils a recording that names a tombstone, as it must never reach a queue. A command that breaks valid usage is only left out.
#[inline]
fn settle(outcome: Result<(), Fault>, recording: &mut Recording) -> Result<Settled, ContextLost> {
    match outcome {
        Ok(()) => Ok(Settled::Recorded),
        Err(Fault::Failed(INVALID)) => Ok(Settled::LeftOut),
        Err(Fault::Failed(result)) => {
            recording.state.spoilt = Some(result);
            Ok(Settled::Recorded)
        }
        Err(Fault::Lost(lost)) => Err(lost),
    }
}

/// Executes the run that a stream begins with; returns its number of bytes, 0 if the stream begins with anything else. `find` returns the function
/// that records a command, if it is one that is recorded.
///
/// # Errors
///
/// The stream is wrong.
#[inline]
pub(crate) fn record_run(
    context: &Context,
    bytes: &[u8],
    arena: &mut Arena,
    cancel: &Cancel,
    find: impl Fn(i32) -> Option<Record> + Copy,
) -> Result<usize, ContextLost> {
    match Recorded::peek(bytes) {
        Some(Recorded { command_buffer, .. }) if next(bytes, command_buffer, find).is_some() => {
            run(context, command_buffer, bytes, arena, cancel, find)
        }
        _ => Ok(0),
    }
}

#[inline(never)]
fn run(
    context: &Context,
    id: venus::CommandBuffer,
    bytes: &[u8],
    arena: &mut Arena,
    cancel: &Cancel,
    find: impl Fn(i32) -> Option<Record> + Copy,
) -> Result<usize, ContextLost> {
    let in_flight = context.retired.enter();
    in_flight.only_records();
    // If the command buffer is wrong, the error comes from the code that executes commands one by one.
    let Ok(command_buffer) = context.objects.shared(id) else { return Ok(0) };
    let mut recordings = command_buffer.pool.lock();
    let Ok(recording) = recordings.open(&command_buffer) else { return Ok(0) };
    let mut run = Run { context, command_buffer: &command_buffer, recording, arena, recorded: bytes };
    let mut objects = context.objects.read();
    let mut rest = bytes;
    for _ in 0..PARTS {
        if run.recording.state.spoilt.is_some() || cancel.is_stopped() {
            break;
        }
        rest = run.part(rest, &objects, find)?;
        if rest.is_empty() {
            break;
        }
        objects.bump();
    }
    run.keep_until(rest);
    Ok(bytes.len() - rest.len())
}

/// The part of a run that does not change from command to command.
struct Run<'r> {
    context: &'r Context,
    command_buffer: &'r CommandBuffer,
    recording: &'r mut Recording,
    arena: &'r mut Arena,
    /// The stream, from the first command that is recorded but not kept yet.
    recorded: &'r [u8],
}

impl<'r> Run<'r> {
    /// Keeps the commands that were recorded up to where `rest` begins.
    fn keep_until(&mut self, rest: &[u8]) {
        let length = self.recorded.len() - rest.len();
        self.recording.commands.append(&self.recorded[..length]);
    }

    /// Executes the next few commands of the run; returns the rest of the stream.
    fn part(
        &mut self,
        bytes: &'r [u8],
        objects: &Table,
        find: impl Fn(i32) -> Option<Record>,
    ) -> Result<&'r [u8], ContextLost> {
        let (id, objects) = (venus::CommandBuffer(self.recording.id), Recent::of(objects));
        let mut rest = bytes;
        for _ in 0..PART {
            let Some((number, record)) = next(rest, id, &find) else { break };
            log::trace!("{} is recorded in a run", venus::Command::name(number).unwrap_or_default());
            self.arena.reset();
            let mut reader = Reader::new(rest, self.arena);
            // Number and flags are known.
            reader.u64()?;
            let mut recorder = Recorder {
                command_buffer: self.command_buffer,
                context: self.context,
                recording: self.recording,
                objects: &objects,
                arena: self.arena,
            };
            let outcome = record(&mut recorder, &mut reader);
            let command = rest;
            rest = &rest[reader.offset()..];
            if outcome.is_err() {
                let settled = settle(outcome, self.recording).map_err(|lost| lost.within(number))?;
                if settled == Settled::LeftOut {
                    self.keep_until(command);
                    self.recorded = rest;
                }
                // The commands that follow would only be skipped.
                if self.recording.state.spoilt.is_some() {
                    break;
                }
            }
        }
        Ok(rest)
    }
}

/// Returns the command that a stream begins with, if it can be one of a run into this command buffer.
#[inline]
fn next(
    bytes: &[u8],
    command_buffer: venus::CommandBuffer,
    find: impl Fn(i32) -> Option<Record>,
) -> Option<(i32, Record)> {
    let Recorded { header, command_buffer: found } = Recorded::peek(bytes)?;
    if found != command_buffer || header.wants_reply() {
        return None;
    }
    Some((header.number, find(header.number)?))
}

/// The most commands between two moments at which another thread can lock the table to change it. These commands take a few microseconds.
const PART: usize = 8;

/// The most parts in a run. During a run other threads wait for the pool, and the guest does not learn of room in its ring.
const PARTS: usize = 8;

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;
