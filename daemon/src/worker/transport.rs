//! The commands of the transport itself: rings, reply streams, indirect streams, and the order between ring and virtqueue.
//!
//! Knows no Vulkan. Follows VK_MESA_venus_protocol; which command may appear where is part of it.

use super::backend::Backend;
use super::context::Context;
use super::ring::{HeadWait, Ring};
use super::stream::{Executor, Place, State};
use crate::ipc::ToDevice;
use protocol::ids::ResourceId;
use protocol::venus::generated::{
    ChainStruct, Command, CreateRingMESA, ExecuteCommandStreamsMESA, SetReplyCommandStreamMESA,
};
use protocol::venus::ring::RingLayout;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use vulkan::{ContextLost, Counted};

/// Executes a transport command; false if it is none. An indirect stream is only noted, for the caller to execute.
pub(super) fn execute<B: Backend>(state: &mut State<B>, command: &Command<'_>) -> Result<bool, ContextLost> {
    match command {
        Command::SetReplyCommandStreamMESA(set) => set_reply_command_stream(state, set)?,
        Command::SeekReplyCommandStreamMESA(seek) => state.reply.seek(seek.position)?,
        Command::ExecuteCommandStreamsMESA(execute) => execute_command_streams(state, execute)?,
        Command::WaitVirtqueueSeqnoMESA(wait) => wait_virtqueue_seqno(state, wait.seqno)?,
        Command::CreateRingMESA(create) => create_ring(on_virtqueue(state)?, create)?,
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

/// Copies the noted streams out of shared memory, one behind the other, before anything looks at their bytes. `into` is empty.
pub(super) fn copy_streams<B: Backend>(state: &State<B>, into: &mut Vec<u8>) -> Result<Counted, ContextLost> {
    let mut counted = state.context.copies.count();
    for stream in &state.indirect {
        let mapping = state.shared_memory(stream.resource_id)?;
        if !stream.size.is_multiple_of(4) || !mapping.contains(stream.offset, stream.size) {
            return Err(ContextLost::new("command stream outside its resource"));
        }
        // What a mapping contains fits into this process.
        let (start, bytes) = (into.len(), stream.size as usize);
        counted.add(bytes)?;
        into.resize(start + bytes, 0);
        let copied = mapping.copy_out(stream.offset, &mut into[start..]);
        copied.map_err(|error| ContextLost::new(error.to_string()))?;
    }
    Ok(counted)
}

fn set_reply_command_stream<B: Backend>(
    state: &mut State<B>,
    set: &SetReplyCommandStreamMESA<'_>,
) -> Result<(), ContextLost> {
    let stream = set.p_stream.ok_or_else(|| ContextLost::new("no stream"))?;
    let mapping = state.shared_memory(stream.resource_id)?;
    state.reply.set(mapping, stream.offset, stream.size)
}

fn execute_command_streams<B: Backend>(
    state: &mut State<B>,
    execute: &ExecuteCommandStreamsMESA<'_>,
) -> Result<(), ContextLost> {
    if state.within_indirect {
        return Err(ContextLost::new("nested streams"));
    }
    if execute.p_reply_positions.is_some() || execute.dependency_count != 0 {
        return Err(ContextLost::new("reply positions and dependencies are not supported"));
    }
    match execute.p_streams {
        Some(streams) if !streams.is_empty() => state.indirect.extend_from_slice(streams),
        _ => return Err(ContextLost::new("no streams")),
    }
    Ok(())
}

fn create_ring<B: Backend>(
    context: &Arc<Context<B>>,
    create: &CreateRingMESA<'_>,
) -> Result<(), ContextLost> {
    let info = create.p_create_info.ok_or_else(|| ContextLost::new("no create info"))?;
    let id = NonZeroU64::new(create.ring).ok_or_else(|| ContextLost::new("ring id 0"))?.get();
    let mapping = context.resources.shared_memory(info.resource_id)?;
    let layout = RingLayout::validate(info, mapping.len() as usize)
        .map_err(|error| ContextLost::new(error.to_string()))?;
    let status = layout.status as u64;
    let ring = Ring::new(mapping, layout, Duration::from_nanos(info.idle_timeout));
    let ring = Arc::new(ring.map_err(|error| ContextLost::new(error.to_string()))?);
    if !ring.is_fresh() {
        return Err(ContextLost::new("head or status of a new ring is not 0"));
    }
    let mut priority = 0;
    let mut period = None;
    for extension in info.p_next {
        match extension {
            ChainStruct::RingMonitorInfoMESA(monitor) => {
                period = Some(monitor.max_reporting_period_microseconds)
            }
            ChainStruct::RingPriorityInfoMESA(wanted) => priority = wanted.priority,
            _ => return Err(ContextLost::new("unknown extension of a ring")),
        }
    }
    context
        .add_ring(id, Arc::clone(&ring), || start_thread(Arc::clone(context), Arc::clone(&ring), priority))?;
    let begins = ToDevice::RingBegins { ring: id, resource_id: ResourceId(info.resource_id), status };
    context.answer(&begins, None);
    if let Some(period) = period {
        let watched = context.monitor.watch(ring, Duration::from_micros(period.into()));
        watched.map_err(|error| ContextLost::new(format!("no thread for the monitor: {error}")))?;
    }
    Ok(())
}

/// Starts the thread of a ring. It ends with the ring; what it cannot execute ends the context.
fn start_thread<B: Backend>(
    context: Arc<Context<B>>,
    ring: Arc<Ring>,
    priority: i32,
) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("ring".into()).stack_size(RING_STACK).spawn(move || {
        prepare_thread(priority);
        let mut executor = Executor::new(Arc::clone(&context), Place::Ring(Arc::clone(&ring)));
        if let Err(lost) = ring.serve(|bytes| executor.run_some(bytes))
            && !ring.cancel().is_cancelled()
        {
            context.lose(&lost);
        }
    })
}

/// Both are wishes: where they are refused the ring works all the same.
fn prepare_thread(priority: i32) {
    // Sleeps of some microseconds would otherwise take fifty more.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    // A guest may step back behind others, but not push to the front.
    if priority > 0 {
        let _ = rustix::process::setpriority_process(None, priority.min(19));
    }
}

fn destroy_ring<B: Backend>(state: &State<B>, id: u64) -> Result<(), ContextLost> {
    let context = on_virtqueue(state)?;
    let thread = context.remove_ring(id)?;
    context.answer(&ToDevice::RingEnds { ring: id }, None);
    // The driver reuses the memory as soon as this is done.
    let joined = away(state, || thread.join());
    joined.map_err(|_| ContextLost::new("thread of a ring panicked"))
}

fn wait_virtqueue_seqno<B: Backend>(state: &State<B>, seqno: u64) -> Result<(), ContextLost> {
    match &state.place {
        Place::Ring(ring) if ring.wait_virtqueue_seqno(seqno) => Ok(()),
        Place::Ring(_) => Err(ContextLost::new("ring has ended")),
        Place::Virtqueue(_) => Err(misplaced()),
    }
}

fn wait_ring_seqno<B: Backend>(state: &State<B>, id: u64, seqno: u64) -> Result<(), ContextLost> {
    let ring = on_virtqueue(state)?.ring(id)?;
    // Positions are counted modulo 2^32.
    let seqno = seqno as u32;
    let reached = ring.poll_head(seqno).and_then(|reached| match reached {
        true => Ok(()),
        false => away(state, || ring.wait_head(seqno)),
    });
    reached.map_err(|why| match why {
        HeadWait::Cancelled => ContextLost::new("ring has ended"),
        HeadWait::Unreachable => ContextLost::new(format!("seqno {seqno} is not in the ring")),
    })
}

/// Runs what may block for long; meanwhile messages are still taken from the device process.
fn away<B: Backend, R>(state: &State<B>, block: impl FnOnce() -> R) -> R {
    match &state.place {
        Place::Virtqueue(inbox) => inbox.while_away(block),
        Place::Ring(_) => block(),
    }
}

/// The context, if this is the virtqueue's executor.
fn on_virtqueue<B: Backend>(state: &State<B>) -> Result<&Arc<Context<B>>, ContextLost> {
    match &state.place {
        Place::Virtqueue(_) => Ok(&state.context),
        Place::Ring(_) => Err(misplaced()),
    }
}

fn misplaced() -> ContextLost {
    ContextLost::new("command has no place here")
}

/// Stack of a ring's thread in bytes: compilers of host drivers run on it and expect what a program's own threads have.
const RING_STACK: usize = 8 << 20;
