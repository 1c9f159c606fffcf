//! The recordings of command buffers, as commands that record them.
//!
//! A recording that can never be submitted any more, because it names a destroyed object or was for one submission, is left out: the successor's
//! command buffer is as if nothing had been recorded. The results of queries come before ([`super::queries`]), so that the successor notes that a
//! recording resets these queries.

use super::queries::Available;
use super::saved::NotMovable;
use super::step::Step;
use crate::context::cause::InheritedError;
use crate::context::error::ContextLost;
use crate::execution::context::Context;
use crate::kinds::command_buffer::{Recording, Stage};
use protocol::venus::generated::{self as venus, ObjectType};

/// Adds the steps that record the commands, behind the steps that make the objects and fill descriptor sets.
///
/// # Errors
///
/// The recordings have more bytes than are kept, or a recording copies results of queries that no successor's driver has.
pub(super) fn save(
    context: &Context,
    available: &Available,
    steps: &mut Vec<Step>,
) -> Result<(), NotMovable> {
    let mut arena = context.arena(0);
    // Primaries execute secondaries, which have to be recorded before.
    let mut primaries = Vec::new();
    for id in context.objects.ids(ObjectType::COMMAND_BUFFER) {
        let Ok(command_buffer) = context.objects.shared(venus::CommandBuffer(id)) else { continue };
        let mut recordings = command_buffer.pool.lock();
        let Ok(recording) = recordings.find(&command_buffer) else { continue };
        let Some(step) = step(recording)? else { continue };
        if let Step::Commands(commands) = &step
            && available.are_copied_by(commands, &mut arena)?
        {
            return Err(NotMovable::for_now(
                "a recording copies results of queries that another recording has made",
            ));
        }
        match recording.state.secondary {
            true => steps.push(step),
            false => primaries.push(step),
        }
    }
    steps.append(&mut primaries);
    Ok(())
}

/// Returns the step that makes a recording as it is; none if the recording needs no step.
fn step(recording: &Recording) -> Result<Option<Step>, NotMovable> {
    let (state, id) = (&recording.state, recording.id);
    if let Some(result) = state.spoilt {
        return Ok(Some(Step::Spoilt { id, result }));
    }
    // Vulkan 6.1: such a recording is invalid once it has completed, and nothing is pending now.
    let is_over = state.one_time && state.was_submitted;
    if state.stage == Stage::Initial || is_over || !recording.uses.is_alive() {
        return Ok(None);
    }
    match recording.commands.bytes() {
        Some(commands) => Ok(Some(Step::Commands(commands.to_vec()))),
        None => Err(NotMovable::for_now(
            "limit recording_bytes reached: its recordings have more bytes than are kept",
        )),
    }
}

/// Spoils a recording, as [`Step::Spoilt`] says.
///
/// # Errors
///
/// There is no such command buffer, or the result is not that of a failure.
pub(super) fn spoil(context: &Context, id: u64, result: i32) -> Result<(), ContextLost> {
    let wrong =
        || ContextLost::from(InheritedError::Object { kind: "command buffer", id, is: "cannot be spoilt" });
    let command_buffer = context.objects.shared(venus::CommandBuffer(id)).map_err(|_| wrong())?;
    let mut recordings = command_buffer.pool.lock();
    let recording = recordings.find(&command_buffer).map_err(|_| wrong())?;
    if result >= 0 {
        return Err(wrong());
    }
    recording.state.spoilt = Some(result);
    Ok(())
}

#[cfg(test)]
#[path = "recordings_tests.rs"]
mod tests;
