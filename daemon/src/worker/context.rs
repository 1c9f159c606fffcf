//! This file holds what the executors of one context share: the host's Vulkan driver, the attached resources, the rings, the open fences; and
//! how all of it ends.
//!
//! Lock order: `rings` before a ring's own lock. Nothing here is locked while a command executes.

use super::backend::Backend;
use super::fences::Fences;
use super::monitor::Monitor;
use super::resources::Resources;
use super::ring::Ring;
use crate::ipc::{Channel, ToDevice, WorkerSetup};
use config::ContextLimits;
use parking_lot::Mutex;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use vulkan::{Budget, Cancel, ContextLost};

/// One guest context.
pub(super) struct Context<B> {
    /// Executes commands.
    pub backend: B,
    /// Bounds on what the guest makes us allocate.
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
    id: ContextId,
    channel: Arc<Channel>,
    rings: Mutex<FxHashMap<u64, RingEntry>>,
    ended: AtomicBool,
}

struct RingEntry {
    ring: Arc<Ring>,
    thread: JoinHandle<()>,
}

impl<B: Backend> Context<B> {
    /// A context without rings.
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
            copies: Budget::new("command_bytes", setup.limits.command_bytes),
            monitor: Monitor::default(),
            cancel: Cancel::default(),
            id: setup.ctx_id,
            channel,
            rings: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Sends an answer. A peer that is gone is noticed where messages are read.
    pub(super) fn answer(&self, message: &ToDevice, fd: Option<std::os::fd::BorrowedFd<'_>>) {
        if let Err(error) = self.channel.send(message, fd) {
            log::debug!(ctx_id = self.id.0; "answer not sent: {error}");
        }
    }

    /// Returns whether the context is lost or its channel closed: nothing is executed any more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The ring of this id.
    pub(super) fn ring(&self, id: u64) -> Result<Arc<Ring>, ContextLost> {
        let rings = self.rings.lock();
        rings.get(&id).map(|entry| Arc::clone(&entry.ring)).ok_or_else(|| ContextLost::new("no such ring"))
    }

    /// Adds a ring with the thread that `start` makes for it.
    pub(super) fn add_ring(
        &self,
        id: u64,
        ring: Arc<Ring>,
        start: impl FnOnce() -> std::io::Result<JoinHandle<()>>,
    ) -> Result<(), ContextLost> {
        let mut rings = self.rings.lock();
        if self.has_ended() {
            return Err(ContextLost::new("context has ended"));
        }
        if rings.contains_key(&id) {
            return Err(ContextLost::new("ring exists already"));
        }
        if rings.len() >= self.limits.rings {
            return Err(ContextLost::new(format!("limit reached: rings ({})", self.limits.rings)));
        }
        let thread = start().map_err(|error| ContextLost::new(format!("no thread for a ring: {error}")))?;
        rings.insert(id, RingEntry { ring, thread });
        Ok(())
    }

    /// Ends a ring and hands out its thread, to be joined: until then the ring's memory is in use.
    pub(super) fn remove_ring(&self, id: u64) -> Result<JoinHandle<()>, ContextLost> {
        let entry = self.rings.lock().remove(&id).ok_or_else(|| ContextLost::new("no such ring"))?;
        entry.ring.end();
        self.monitor.forget(&entry.ring);
        Ok(entry.thread)
    }

    /// The context cannot go on: its rings are FATAL, every fence is answered now, and so is what comes later.
    pub(super) fn lose(&self, lost: &ContextLost) {
        if self.end_rings(|ring| ring.set_fatal()) {
            // The device process logs it, once and within limits.
            log::debug!(ctx_id = self.id.0; "context lost: {lost}");
            self.answer(&ToDevice::Lost { reason: lost.reason.clone() }, None);
            self.fences.release();
        }
    }

    /// The device process is gone: whatever waits stops waiting.
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

    /// Answers whether this was the first end.
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
