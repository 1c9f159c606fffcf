//! Plays a stream of commands through a ring of a worker in this process, on the driver that does nothing: to count instructions.
//!
//! Everything between the bytes of the ring and the driver's functions is a worker's own code, on the calling thread alone, so that a run
//! is the same each time. The part of the guest is [`publish`].

use super::at_rest::Begin;
use super::backend::Backend;
use super::context::Context;
use super::journal::Told;
use super::resources::{Arriving, Resources};
use super::ring::Ring;
use super::stream::{Executor, Place};
use crate::ipc::{Channel, WorkerSetup};
use config::{ContextLimits, Passage};
use protocol::ids::{ContextId, ResourceId};
use protocol::venus::ring::RingLayout;
use shm::journal::Journal;
use shm::{self, Doorbell, GateSide, Mapping, SchedulerSide, StatusPage};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vulkan::null;
use vulkan::{ContextLost, Gate, HostError, Renderer};

/// The commands that are played.
#[derive(Clone, Copy)]
pub struct Workload<'a> {
    /// Commands that make objects, executed once.
    pub prepare: &'a [u8],
    /// Commands that come again and again, and leave everything as it was; at most 16 MiB.
    pub lap: &'a [u8],
    /// The number of laps.
    pub laps: u32,
    /// Submissions pass a gate, with a lease.
    pub gated: bool,
    /// The worker keeps a journal.
    pub journalled: bool,
}

/// The resource for replies, and its bytes.
pub const REPLIES: (u32, u64) = (1, 1 << 16);

const RING: ResourceId = ResourceId(2);
const TAIL: u64 = 64;
const BUFFER: usize = 4096;

/// Plays a workload and answers how often its laps called the driver.
///
/// # Errors
///
/// A command is wrong, or breaks valid usage.
pub fn play(workload: &Workload<'_>) -> Result<u64, ContextLost> {
    let _exclusive = null::begin_trusting();
    let (channel, _peer) = Channel::pair().map_err(failed)?;
    let resources = Arc::<Resources>::default();
    let size = workload.lap.len().next_power_of_two().max(4096);
    attach(&resources, ResourceId(REPLIES.0), REPLIES.1)?;
    attach(&resources, RING, (BUFFER + size) as u64)?;
    let limits = ContextLimits::default();
    let backend = gated(null::renderer_within(limits, Arc::clone(&resources) as _), workload.gated)?;
    let pages = resources.shared_memory(RING.0)?;
    let (page, _) = StatusPage::create().map_err(failed)?;
    let backend = if workload.journalled { backend.journalled(Told::of(&page)) } else { backend };
    let context = Context::new(&setup(limits), Arc::new(channel), resources, backend);
    let context = Arc::new(if workload.journalled { context.telling(&page) } else { context });
    let (head, tail, status) = (0, TAIL as usize, 128);
    let layout = RingLayout { head, tail, status, buffer: BUFFER..BUFFER + size, extra: 192..192 };
    let ring = Ring::new(Arc::clone(&pages), layout, Duration::ZERO).map_err(failed)?;
    let ring = Arc::new(ring.named(1));
    let mut executor = Executor::new(Arc::clone(&context), Place::Ring(Arc::clone(&ring)), Begin::default());
    executor.run_from(workload.prepare, &mut 0)?;
    if null::has_failed(&context.backend) {
        return Err(ContextLost::daemon("an object was refused"));
    }
    if workload.journalled {
        keep_journal(&context, &page)?;
    }
    let before = null::calls();
    let (mut left, mut taken, mut end) = (workload.laps, 0u32, 0u32);
    if left > 0 {
        end = publish(&pages, end, workload.lap)?;
        ring.serve(&mut executor.batches(), |commands| {
            let length = executor.run_some(commands)?;
            taken = taken.wrapping_add(length as u32);
            if taken == end {
                left -= 1;
                match left {
                    0 => ring.end(),
                    _ => end = publish(&pages, end, workload.lap)?,
                }
            }
            Ok(length)
        })?;
    }
    let called = null::calls() - before;
    if null::has_failed(&context.backend) {
        return Err(ContextLost::daemon("a command was refused"));
    }
    if workload.journalled && page.checkpoint().current().is_none() {
        return Err(ContextLost::daemon("the journal ended"));
    }
    context.end();
    context.join();
    Ok(called)
}

/// Keeps a journal from now on, as if a checkpoint were written.
fn keep_journal<B: Backend>(context: &Context<B>, page: &StatusPage) -> Result<(), ContextLost> {
    let journal = Journal::open(Journal::create().map_err(failed)?).map_err(failed)?;
    journal.begins(1);
    let _ = context.journal.set(Arc::new(journal));
    page.checkpoint().begins();
    page.checkpoint().ends(1);
    Ok(())
}

/// Does what the guest does: writes a lap into the ring behind its end, and answers the new one. It is a function of its own, so that its
/// costs can be told from the rest.
#[inline(never)]
pub fn publish(pages: &Arc<Mapping>, end: u32, lap: &[u8]) -> Result<u32, ContextLost> {
    let size = pages.len() as usize - BUFFER;
    let at = end as usize % size;
    let (first, wrapped) = lap.split_at(lap.len().min(size - at));
    pages.copy_in((BUFFER + at) as u64, first).map_err(failed)?;
    pages.copy_in(BUFFER as u64, wrapped).map_err(failed)?;
    let end = end.wrapping_add(lap.len() as u32);
    pages.word(TAIL).map_err(failed)?.store(end, Ordering::Release);
    Ok(end)
}

fn failed(error: impl std::fmt::Display) -> ContextLost {
    ContextLost::from(HostError::refused("the workload cannot be played", error))
}

fn attach(resources: &Resources, id: ResourceId, size: u64) -> Result<(), ContextLost> {
    let file: OwnedFd = shm::create("workload", size).map_err(failed)?;
    resources.attach(id, Arriving::Shared(file), size, 0).map_err(failed)
}

/// Puts the renderer behind a gate that has a lease for ever. The gate's thread does not run: no submission is ever held back.
fn gated(renderer: Renderer, wanted: bool) -> Result<Renderer, ContextLost> {
    if !wanted {
        return Ok(renderer);
    }
    let page = shm::grant_page().map_err(failed)?;
    SchedulerSide::open(&page).map_err(failed)?.lease(true);
    let side = GateSide::open(&page).map_err(failed)?;
    let doorbell = Arc::new(Doorbell::new().map_err(failed)?);
    let gate = Gate::new(side, doorbell, Passage::ByGrant);
    Ok(renderer.gated(null::gpus().iter().map(|_| Arc::clone(&gate)).collect()))
}

fn setup(limits: ContextLimits) -> WorkerSetup {
    WorkerSetup {
        ctx_id: ContextId(1),
        debug_name: "workload".into(),
        gpus: null::gpus(),
        limits,
        cache_key: null::CACHE_KEY,
        passage: None,
        waiting_off: Vec::new(),
        swapped_out: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `vkEnumerateInstanceVersion` without a reply, which calls no driver's function that counts.
    #[test]
    fn laps_wrap_around_the_ring() {
        let command: Vec<u8> = [137u32, 0, 1, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        let lap = command.repeat(300);
        let workload = Workload { prepare: &command, lap: &lap, laps: 5, gated: false, journalled: false };
        assert!(play(&workload).is_ok());
        assert!(play(&Workload { journalled: true, ..workload }).is_ok());
        let workload = Workload { lap: &lap[..lap.len() - 4], ..workload };
        assert!(play(&workload).is_err());
    }
}
