//! Objects that are gone for the guest and not yet for the driver.
//!
//! An object is destroyed when no command in flight can have looked it up, and no pending submission uses it. Epochs tell the first:
//! a command enters the current epoch and leaves it, and no command can still know an object that was retired two epochs ago. An epoch ends
//! when no thread is left in the one before. With one ring there is no other thread, and no object waits. Memory that is lent waits
//! longer ([`Lent`]), and memory that may be wanted again is kept for a moment ([`Pool`]).

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::lent::Lent;
use super::pool::Pool;
use crate::context::cause::Limit;
use crate::context::error::ContextLost;
use crate::objects::object::Object;
use config::MemoryId;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The objects that wait to be destroyed, and the commands that are in flight.
#[derive(Debug)]
pub struct Retired {
    epoch: AtomicU64,
    /// Commands in flight, by the lowest bit of the epoch they entered.
    active: [AtomicUsize; 2],
    waiting: Mutex<VecDeque<(u64, Object)>>,
    count: AtomicUsize,
    limit: usize,
    lent: Lent,
    pool: Arc<Pool>,
}

/// A command in flight; when it ends, it destroys the objects that can be destroyed, unless it only records.
pub struct InFlight<'a> {
    retired: &'a Retired,
    epoch: u64,
    collects: Cell<bool>,
}

impl InFlight<'_> {
    /// Notes that the command only records: it learns of no completion, and asking the driver after each such command would be too early.
    pub fn only_records(&self) {
        self.collects.set(false);
    }
}

impl Retired {
    /// An empty list with room for `limit` objects; memory goes to `pool`.
    pub fn new(limit: usize, pool: Arc<Pool>) -> Self {
        Self {
            epoch: AtomicU64::new(0),
            active: Default::default(),
            waiting: Mutex::default(),
            count: AtomicUsize::new(0),
            limit,
            lent: Lent::default(),
            pool,
        }
    }

    /// Registers a command that begins. Objects that the command looks up are not destroyed before it ends.
    pub fn enter(&self) -> InFlight<'_> {
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            self.active(epoch).fetch_add(1, Ordering::SeqCst);
            if self.epoch.load(Ordering::SeqCst) == epoch {
                return InFlight { retired: self, epoch, collects: Cell::new(true) };
            }
            self.active(epoch).fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Destroys an object that was taken out of the table, now or later. Called by a command in flight.
    pub fn destroy(&self, object: Object) -> Result<(), ContextLost> {
        // A thread that enters from now on does not find the object in the table.
        let alone = self.active.iter().map(|active| active.load(Ordering::SeqCst)).sum::<usize>() <= 1;
        if alone && is_idle(&object) {
            self.finish(object);
            return Ok(());
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() >= self.limit {
            return Err(Limit::Retired(self.limit).into());
        }
        waiting.push_back((self.epoch.load(Ordering::SeqCst), object));
        self.count.store(waiting.len(), Ordering::SeqCst);
        Ok(())
    }

    /// Destroys everything that waits: no command is in flight, and every device is idle.
    pub fn flush(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        self.count.store(0, Ordering::SeqCst);
        waiting.into_iter().for_each(|(_, object)| self.finish(object));
    }

    /// Destroys the waiting objects that are in no use any more, while no command is in flight. Returns whether none is left.
    pub fn flush_idle(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let (idle, used) = std::mem::take(&mut *waiting).into_iter().partition(|(_, object)| is_idle(object));
        *waiting = used;
        let all: VecDeque<(u64, Object)> = idle;
        let is_all = waiting.is_empty();
        self.count.store(waiting.len(), Ordering::SeqCst);
        drop(waiting);
        all.into_iter().for_each(|(_, object)| self.finish(object));
        is_all
    }

    /// Lends memory that is about to be shown to others, and that must not be freed before its blobs are gone.
    pub fn lend(&self, memory: MemoryId) {
        self.lent.lend(memory);
    }

    /// Takes note that a blob of lent memory is gone, and disposes of the objects that may be freed now.
    pub fn give_back(&self, memory: MemoryId) {
        self.lent.return_one(memory).into_iter().for_each(|object| self.keep_or_destroy(object));
    }

    /// Returns whether memory is lent.
    pub fn is_lending(&self) -> bool {
        self.lent.is_lending()
    }

    fn active(&self, epoch: u64) -> &AtomicUsize {
        &self.active[(epoch & 1) as usize]
    }

    /// Goes on to the next epoch if no thread is left in the one before, then destroys objects from the oldest on.
    fn collect(&self) {
        // If the lock is taken, another command collects already.
        let Some(mut waiting) = self.waiting.try_lock() else { return };
        let mut epoch = self.epoch.load(Ordering::SeqCst);
        for _ in 0..2 {
            if self.active(epoch.wrapping_sub(1)).load(Ordering::SeqCst) == 0 {
                epoch += 1;
                self.epoch.store(epoch, Ordering::SeqCst);
            }
        }
        while waiting.front().is_some_and(|(retired, object)| retired + 2 <= epoch && is_idle(object)) {
            if let Some((_, object)) = waiting.pop_front() {
                self.finish(object);
            }
        }
        self.count.store(waiting.len(), Ordering::SeqCst);
    }

    fn finish(&self, object: Object) {
        if let Some(object) = self.lent.keep(object) {
            self.keep_or_destroy(object);
        }
    }

    fn keep_or_destroy(&self, object: Object) {
        if let Some(object) = self.pool.put(object) {
            destroy(object);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.retired.active(self.epoch).fetch_sub(1, Ordering::SeqCst);
        if self.collects.get() && self.retired.count.load(Ordering::Relaxed) > 0 {
            self.retired.collect();
        }
    }
}

/// Returns whether no pending submission uses the object, and no thread of ours.
fn is_idle(object: &Object) -> bool {
    if object.is_watched() {
        return false;
    }
    object.device.as_ref().is_none_or(|device| device.completed(&object.usage.submitted()))
}

fn destroy(object: Object) {
    if let Some(device) = &object.device {
        // SAFETY: the object was taken out of the table; no command in flight and no pending submission uses it.
        unsafe { device.destroy(object.kind(), object.raw) };
    }
}
