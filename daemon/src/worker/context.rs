//! This file holds what the executors of one context share: the host's Vulkan driver, the attached resources, the rings, the open fences; and
//! how they end.
//!
//! Lock order: `rings` before a ring's own lock. Nothing here is locked while a command executes.

use super::at_rest::{Rests, RingAtRest};
use super::backend::Backend;
use super::fences::Fences;
use super::monitor::Monitor;
use super::resources::Resources;
use super::ring::Ring;

use crate::ipc::{Channel, ToDevice, WorkerSetup};
use config::ContextLimits;
use parking_lot::Mutex;
use protocol::ids::{ContextId, ResourceId};
use rustc_hash::FxHashMap;
use shm::journal::Journal;
use shm::{Activity, CheckpointMark, Progress, StatusPage};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vulkan::snapshot::NotMovable;
use vulkan::{Budget, Cancel, Cause, ContextLost, HostError, Limit, StreamError};

/// One guest context.
pub(super) struct Context<B> {
    /// Executes commands.
    pub backend: B,
    /// Bounds on the resources that the guest makes this worker allocate.
    pub limits: ContextLimits,
    /// The resources that rings and streams may name.
    pub resources: Arc<Resources>,
    /// The fences that the device process waits for.
    pub fences: Arc<Fences>,
    /// The bytes that executors have copied out of streams.
    pub copies: Budget,
    /// Keeps rings ALIVE.
    pub monitor: Monitor,
    /// Ends waits of the virtqueue's executor inside the driver.
    pub cancel: Cancel,
    /// Interrupts waits of the virtqueue's executor for rings while the worker is to hand over.
    pub hand_overs: AwaitedHandOvers,
    /// Hears which rings are awake, if the context has a status page.
    pub activity: Option<Arc<Activity>>,
    /// Says whether the last checkpoint has all executed commands, if the context has a status page.
    pub checkpoint: Option<Arc<CheckpointMark>>,
    /// Says how far the worker has come, if the context has a status page.
    pub progress: Option<Arc<Progress>>,
    /// The journal, once the worker was given one.
    pub journal: OnceLock<Arc<Journal>>,
    id: ContextId,
    channel: Arc<Channel>,
    rings: Mutex<FxHashMap<u64, RingEntry>>,
    ended: AtomicBool,
}

/// The requests to hand over or to prepare a hand-over that have come and are not handled.
#[derive(Debug, Default)]
pub(super) struct AwaitedHandOvers {
    /// Interrupted while there are some.
    pub waits: Cancel,
    count: Mutex<u32>,
}

/// A ring and its thread.
pub(super) struct RingEntry {
    /// The ring.
    pub ring: Arc<Ring>,
    /// The ring's thread.
    pub thread: JoinHandle<()>,
    /// The resource that the ring lies in.
    pub resource: ResourceId,
    /// The command that made the ring, as it was encoded, if it is not too long to be kept.
    pub created_by: Option<Box<[u8]>>,
    /// The state in which the ring's executor came to rest.
    pub rests: Rests,
}

impl<B: Backend> Context<B> {
    /// Makes a context without rings.
    pub(super) fn new(
        setup: &WorkerSetup,
        channel: Arc<Channel>,
        resources: Arc<Resources>,
        backend: B,
    ) -> Self {
        Self {
            backend,
            limits: setup.limits,
            resources,
            fences: Arc::new(Fences::new(Arc::clone(&channel))),
            copies: Budget::new(Limit::CommandBytes, setup.limits.command_bytes),
            monitor: Monitor::default(),
            cancel: Cancel::default(),
            hand_overs: AwaitedHandOvers::default(),
            activity: None,
            checkpoint: None,
            progress: None,
            journal: OnceLock::new(),
            id: setup.ctx_id,
            channel,
            rings: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Has the context say in this page which rings are awake, and whether its checkpoint has all executed commands.
    pub(super) fn telling(self, page: &StatusPage) -> Self {
        let (activity, checkpoint) = (Arc::clone(page.activity()), Arc::clone(page.checkpoint()));
        let progress = Some(Arc::clone(page.progress()));
        Self { activity: Some(activity), checkpoint: Some(checkpoint), progress, ..self }
    }

    /// Returns the journal, if it follows the checkpoint of this number.
    pub(super) fn journal_behind(&self, number: u32) -> Option<Arc<Journal>> {
        self.journal.get().filter(|journal| journal.number() == number).cloned()
    }

    /// Looks at the journal after memory was taken out of it, or there was no room. If there is little room, the worker asks for another checkpoint.
    /// Without any room, no executor makes a note before that checkpoint.
    pub(super) fn looks_at_journal(&self, journal: &Journal, is_full: bool) {
        if is_full {
            log::debug!(ctx_id = self.id.0; "the journal is full");
            self.changes();
        }
        if is_full || journal.is_filling() {
            self.answer(&ToDevice::JournalFills, None);
        }
    }

    /// Marks a command that is about to be executed, or a change, which neither a checkpoint nor its journal has.
    #[inline]
    pub(super) fn changes(&self) {
        if let Some(checkpoint) = &self.checkpoint {
            checkpoint.changes();
        }
    }

    /// Sends an answer. The thread that reads messages notices when the device process is gone.
    pub(super) fn answer(&self, message: &ToDevice, fd: Option<std::os::fd::BorrowedFd<'_>>) {
        if let Err(error) = self.channel.send(message, fd) {
            log::debug!(ctx_id = self.id.0; "answer not sent: {error}");
        }
    }

    /// Returns whether the context is lost or its channel closed: nothing is executed any more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns the ring of this id.
    pub(super) fn ring(&self, id: u64) -> Result<Arc<Ring>, ContextLost> {
        let rings = self.rings.lock();
        rings.get(&id).map(|entry| Arc::clone(&entry.ring)).ok_or_else(|| StreamError::NoRing.into())
    }

    /// Adds a ring, which `start` makes with its thread.
    pub(super) fn add_ring(
        &self,
        id: u64,
        start: impl FnOnce() -> std::io::Result<RingEntry>,
    ) -> Result<(), ContextLost> {
        let mut rings = self.rings.lock();
        if self.has_ended() {
            return Err(Cause::Ended.into());
        }
        if rings.contains_key(&id) {
            return Err(ContextLost::rule("ring exists already"));
        }
        if rings.len() >= self.limits.rings {
            return Err(Limit::Rings(self.limits.rings).into());
        }
        let entry = start().map_err(|error| HostError::refused("no thread for a ring", error))?;
        rings.insert(id, entry);
        Ok(())
    }

    /// Ends a ring and hands out its thread, to be joined: until then the ring's memory is in use.
    pub(super) fn remove_ring(&self, id: u64) -> Result<JoinHandle<()>, ContextLost> {
        let entry = self.rings.lock().remove(&id).ok_or(StreamError::NoRing)?;
        entry.ring.end();
        self.monitor.forget(&entry.ring);
        Ok(entry.thread)
    }

    /// Brings all rings to rest between two commands; a command that waits is interrupted. Returns after `patience` at the
    /// latest whether all rest. If not, the caller has to tell them to [go on](Self::go_on).
    pub(super) fn come_to_rest(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let rings: Vec<_> = self.rings.lock().values().map(|entry| Arc::clone(&entry.ring)).collect();
        rings.iter().for_each(|ring| ring.interrupt());
        rings.iter().all(|ring| ring.wait_rested(deadline)) && !self.has_ended()
    }

    /// Counts a request to hand over or to prepare that: until it [is handled](Self::hand_over_is_handled), the virtqueue's executor waits for no ring.
    pub(super) fn hand_over_comes(&self) {
        let AwaitedHandOvers { waits, count } = &self.hand_overs;
        let mut count = count.lock();
        *count += 1;
        waits.interrupt();
        drop(count);
        self.rings.lock().values().for_each(|entry| entry.ring.wake_head_waiters());
    }

    /// Counts the first of these requests as handled.
    pub(super) fn hand_over_is_handled(&self) {
        let AwaitedHandOvers { waits, count } = &self.hand_overs;
        let mut count = count.lock();
        *count = count.saturating_sub(1);
        if *count == 0 {
            waits.resume();
        }
    }

    /// Lets all resting rings go on.
    pub(super) fn go_on(&self) {
        self.rings.lock().values().for_each(|entry| entry.ring.go_on());
    }

    /// Returns the rings, all of which rest.
    ///
    /// # Errors
    ///
    /// One of them cannot be made again.
    pub(super) fn rings_at_rest(&self) -> Result<Vec<RingAtRest>, NotMovable> {
        let at_rest = |(id, entry): (&u64, &RingEntry)| {
            let pages = self.resources.shared_memory(entry.resource.0);
            if !pages.is_ok_and(|pages| entry.ring.lies_in(&pages)) {
                let reason = "a ring lies in memory that its context does not see any more".to_owned();
                return Err(NotMovable::for_now(reason));
            }
            let Some(created_by) = &entry.created_by else {
                return Err(NotMovable::ever("a ring of an unusual kind"));
            };
            Ok(RingAtRest {
                id: *id,
                created_by: created_by.to_vec(),
                head: entry.ring.head(),
                virtqueue_seqno: entry.ring.virtqueue_seqno(),
                executor: *entry.rests.lock(),
            })
        };
        self.rings.lock().iter().map(at_rest).collect()
    }

    /// Loses the context: marks its rings FATAL and answers every open fence now, and every later fence at once.
    pub(super) fn lose(&self, lost: &ContextLost) {
        if self.end_rings(|ring| ring.set_fatal()) {
            // The device process logs it, once and within limits.
            log::debug!(ctx_id = self.id.0; "context lost: {lost}");
            self.answer(&ToDevice::Lost { at_fault: lost.at_fault(), reason: lost.to_string() }, None);
            self.fences.release();
        }
    }

    /// Ends all waits, as the device process is gone.
    pub(super) fn end(&self) {
        self.end_rings(|_| ());
    }

    /// Joins the threads of all rings, which were ended before.
    pub(super) fn join(&self) {
        let rings = std::mem::take(&mut *self.rings.lock());
        for (_, entry) in rings {
            // A panic of a ring's thread has been reported by the panic hook; there is nothing to add.
            let _ = entry.thread.join();
        }
    }

    /// Ends all rings, and returns whether this was the first end.
    fn end_rings(&self, mark: impl Fn(&Ring)) -> bool {
        let rings = self.rings.lock();
        let first = !self.ended.swap(true, Ordering::AcqRel);
        self.cancel.cancel();
        for entry in rings.values() {
            if first {
                mark(&entry.ring);
            }
            entry.ring.end();
        }
        first
    }
}
