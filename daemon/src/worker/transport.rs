//! The commands of the transport itself: rings, reply streams, indirect streams, and the order between ring and virtqueue.
//!
//! This module knows no Vulkan. It follows VK_MESA_venus_protocol, which also says where each command may appear.

use super::backend::Backend;
use super::context::Context;
use super::ring::{HeadWait, VirtqueueWait};
use super::ring_thread;
use super::stream::{Place, StreamState};
use crate::ipc::ToDevice;
use protocol::ids::ResourceId;
use protocol::venus::generated::{
    Command, CommandStreamDescriptionMESA, ExecuteCommandStreamsMESA, SetReplyCommandStreamMESA,
};
use shm::Mapping;
use std::sync::Arc;
use vulkan::{Cause, ContextLost, Counted, Interrupted, Stop, StreamError};

/// Executes a transport command, whose encoding is `bytes`; false if it is none. An indirect stream is only noted, for the caller to execute.
pub(super) fn execute<B: Backend>(
    state: &mut StreamState<B>,
    command: &Command<'_>,
    bytes: &[u8],
) -> Result<bool, ContextLost> {
    match command {
        Command::SetReplyCommandStreamMESA(set) => set_reply_command_stream(state, set)?,
        Command::SeekReplyCommandStreamMESA(seek) => state.reply.seek(seek.position)?,
        Command::ExecuteCommandStreamsMESA(execute) => execute_command_streams(state, execute)?,
        Command::WaitVirtqueueSeqnoMESA(wait) => wait_virtqueue_seqno(state, wait.seqno)?,
        Command::CreateRingMESA(create) => ring_thread::create_ring(on_virtqueue(state)?, create, bytes)?,
        Command::DestroyRingMESA(destroy) => destroy_ring(state, destroy.ring)?,
        Command::NotifyRingMESA(notify) => on_virtqueue(state)?.ring(notify.ring)?.notify(),
        Command::WriteRingExtraMESA(write) => {
            on_virtqueue(state)?.ring(write.ring)?.write_extra(write.offset, write.value)?;
        }
        Command::SubmitVirtqueueSeqnoMESA(submit) => {
            on_virtqueue(state)?.ring(submit.ring)?.publish_virtqueue_seqno(submit.seqno);
        }
        Command::WaitRingSeqnoMESA(wait) => wait_ring_seqno(state, wait.ring, wait.seqno)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the number of bytes of the noted streams, and counts them as copied.
pub(super) fn count_streams<B: Backend>(state: &StreamState<B>) -> Result<(usize, Counted), ContextLost> {
    let (mut bytes, mut counted) = (0, state.context.copies.count());
    for stream in &state.indirect {
        // The contents of a mapping fit into this process.
        if !stream.size.is_multiple_of(4) || !shared(state, stream)?.contains(stream.offset, stream.size) {
            return Err(outside());
        }
        counted.add(stream.size as usize)?;
        bytes += stream.size as usize;
    }
    Ok((bytes, counted))
}

/// Copies the noted streams out of shared memory, one behind the other, before any code looks at their bytes. The caller has made room
/// ([`count_streams`]).
pub(super) fn copy_streams<B: Backend>(
    state: &StreamState<B>,
    mut into: &mut [u8],
) -> Result<(), ContextLost> {
    for stream in &state.indirect {
        let room = into.split_off_mut(..stream.size as usize);
        let room = room.ok_or_else(outside)?;
        let copied = shared(state, stream)?.copy_out(stream.offset, room);
        copied.map_err(|_| outside())?;
    }
    Ok(())
}

fn outside() -> ContextLost {
    ContextLost::from(StreamError::Outside("command stream", "its resource"))
}

fn shared<B: Backend>(
    state: &StreamState<B>,
    stream: &CommandStreamDescriptionMESA,
) -> Result<Arc<Mapping>, ContextLost> {
    state.shared_memory(stream.resource_id)
}

fn set_reply_command_stream<B: Backend>(
    state: &mut StreamState<B>,
    set: &SetReplyCommandStreamMESA<'_>,
) -> Result<(), ContextLost> {
    let stream = set.p_stream.ok_or(StreamError::Without("a stream"))?;
    let mapping = state.shared_memory(stream.resource_id)?;
    state.reply.set(ResourceId(stream.resource_id), mapping, stream.offset, stream.size)
}

fn execute_command_streams<B: Backend>(
    state: &mut StreamState<B>,
    execute: &ExecuteCommandStreamsMESA<'_>,
) -> Result<(), ContextLost> {
    if state.within_indirect {
        return Err(ContextLost::rule("nested streams"));
    }
    if execute.p_reply_positions.is_some() || execute.dependency_count != 0 {
        return Err(ContextLost::rule("reply positions and dependencies are not supported"));
    }
    match execute.p_streams {
        Some(streams) if !streams.is_empty() => state.indirect.extend_from_slice(streams),
        _ => return Err(StreamError::Without("streams").into()),
    }
    Ok(())
}

fn destroy_ring<B: Backend>(state: &StreamState<B>, id: u64) -> Result<(), ContextLost> {
    let context = on_virtqueue(state)?;
    let thread = context.remove_ring(id)?;
    context.answer(&ToDevice::RingEnds { ring: id }, None);
    // The driver reuses the ring's memory as soon as this command is done.
    let joined = away(state, || thread.join());
    joined.map_err(|_| ContextLost::daemon("thread of a ring panicked"))
}

fn wait_virtqueue_seqno<B: Backend>(state: &StreamState<B>, seqno: u64) -> Result<(), ContextLost> {
    match &state.place {
        Place::Ring(ring) => ring.wait_virtqueue_seqno(seqno).map_err(|why| match why {
            VirtqueueWait::Stopped(Stop::Cancelled) => ContextLost::from(Cause::Ended),
            VirtqueueWait::Stopped(Stop::Interrupted) => Interrupted.into(),
            VirtqueueWait::Circle => circle(),
        }),
        Place::Virtqueue(_) => Err(misplaced()),
    }
}

fn wait_ring_seqno<B: Backend>(state: &StreamState<B>, id: u64, seqno: u64) -> Result<(), ContextLost> {
    let ring = on_virtqueue(state)?.ring(id)?;
    // Positions are counted modulo 2^32.
    let seqno = seqno as u32;
    let reached = ring.poll_head(seqno).and_then(|reached| match reached {
        true => Ok(()),
        false => away(state, || ring.wait_head(seqno, &state.context.hand_overs.waits)),
    });
    reached.map_err(|why| match why {
        HeadWait::Cancelled => ContextLost::from(Cause::Ended),
        HeadWait::Interrupted => Interrupted.into(),
        HeadWait::Unreachable => ContextLost::rule("a seqno that is not in the ring"),
        HeadWait::Circle => circle(),
    })
}

/// Returns the error of a circle of waits, in which the context would stand still for ever.
fn circle() -> ContextLost {
    ContextLost::rule("a ring waits for the virtqueue, which waits for that ring")
}

/// Runs `block`, which may take long; meanwhile the worker still takes messages from the device process.
fn away<B: Backend, R>(state: &StreamState<B>, block: impl FnOnce() -> R) -> R {
    match &state.place {
        Place::Virtqueue(inbox) => inbox.while_away(block),
        Place::Ring(_) => block(),
    }
}

/// Returns the context, if this is the virtqueue's executor.
fn on_virtqueue<B: Backend>(state: &StreamState<B>) -> Result<&Arc<Context<B>>, ContextLost> {
    match &state.place {
        Place::Virtqueue(_) => Ok(&state.context),
        Place::Ring(_) => Err(misplaced()),
    }
}

fn misplaced() -> ContextLost {
    ContextLost::misplaced("command")
}
