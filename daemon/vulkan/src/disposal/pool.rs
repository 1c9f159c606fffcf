//! Memory that a guest has freed, kept for a moment for the same device of the same context.
//!
//! Drivers take long to make memory, pages have to be made and pinned, and programs often want the same again. Kept memory still has the
//! guest's contents, and is cleared when it is used again (unless `--zero-memory off`): programs and Mesa itself take new memory to be
//! zero. Another context never gets it. The memory counts for its context until it is freed: after a while, when memory is scarce, or
//! together with its device. Memory that still has a blob, or that another context holds, is not used again: the device process says when
//! each blob of a memory is gone, and says nothing of memory that other contexts hold.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::free_list::{Bounds, FreeList};
use super::freed::Freed;
use crate::backing::memory::Memory;
use crate::backing::reuse_key::ReuseKey;
use crate::logical::device::Device;
use crate::objects::object::Object;
use config::{ContextLimits, MemoryId, PerHeap};
use parking_lot::{Condvar, Mutex, MutexGuard};
use protocol::venus::generated as venus;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are kept of each heap, at most.
const BYTES_MAX: u64 = 256 << 20;

/// The divisor of the memory that a context may have: at most this part of it is kept.
const PART: u64 = 8;

/// Pieces that are kept, at most: each is searched.
const PIECES_MAX: usize = 128;

/// The time for which memory is kept. Tests, which may take any time, say when memory is to grow old.
const AGE: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 2 });

/// The pool of one context.
#[derive(Debug)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when the list gets memory that will grow old, or when everything ends.
    changed: Condvar,
    /// The lock that a thread holds while it frees memory that was taken out of the list.
    freeing: Mutex<()>,
    freed: Freed,
}

#[derive(Debug)]
struct State {
    free_list: FreeList<Object>,
    /// The number of blobs of each memory that may be kept.
    shown: FxHashMap<MemoryId, usize>,
    has_thread: bool,
    /// True while the thread sleeps until it is woken, without a time limit.
    sleeps: bool,
    /// Nothing is kept.
    is_closed: bool,
    ended: bool,
}

impl Pool {
    /// An empty pool of a context with these limits. It counts in `freed` the times that it frees memory.
    pub fn new(limits: &ContextLimits, freed: Freed) -> Self {
        let part = |limit: u64| BYTES_MAX.min(limit / PART);
        let bytes = PerHeap { device: part(limits.device_memory), host: part(limits.host_memory) };
        let free_list = FreeList::new(Bounds { bytes, pieces: PIECES_MAX, age: AGE });
        let state = State {
            free_list,
            shown: FxHashMap::default(),
            has_thread: false,
            sleeps: false,
            is_closed: false,
            ended: false,
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            freeing: Mutex::default(),
            freed,
        }))
    }

    /// Takes memory of this device that agrees with `key` and is in no use; returns the driver's handle and the memory.
    pub fn take(&self, device: &Arc<Device>, key: &ReuseKey) -> Option<(u64, Arc<Memory>)> {
        let mut state = self.0.state.lock();
        let State { free_list, shown, .. } = &mut *state;
        let fits = |object: &Object| is_of(object, device) && sole_memory(object, shown).is_some();
        let object = free_list.take(key, fits)?;
        drop(state);
        Some((object.raw, object.get_shared::<venus::DeviceMemory>()?))
    }

    /// Keeps an object that is memory of a live device and can be used again; returns any other, to be destroyed. Nothing uses the object any
    /// more.
    pub fn put(&self, object: Object) -> Option<Object> {
        let Some(memory) = memory(&object) else { return Some(object) };
        let (key, piece) = (memory.key, memory.piece());
        let mut state = self.0.state.lock();
        let keeps = |state: &mut State| is_live(&object) && !state.is_closed && self.0.is_aging(state);
        let Some(key) = key.filter(|_| keeps(&mut state)) else {
            piece.map(|piece| state.shown.remove(&piece));
            return Some(object);
        };
        let gone = state.free_list.put(key, object, Instant::now());
        state.forget(&gone);
        let wakes = std::mem::take(&mut state.sleeps);
        drop(state);
        if wakes {
            self.0.changed.notify_one();
        }
        self.0.free(gone);
        None
    }

    /// Keeps no memory from now on, or keeps memory again. A context that is being built up keeps none: the memory that it frees may be the same
    /// driver memory as another allocation, or be at the address of another.
    pub fn keep_nothing(&self, is_closed: bool) {
        self.0.state.lock().is_closed = is_closed;
    }

    /// Returns whether nothing is kept, because a context is being built up.
    pub fn keeps_nothing(&self) -> bool {
        self.0.state.lock().is_closed
    }

    /// Counts a blob that is about to show memory to the guest.
    pub fn show(&self, memory: &Memory) {
        if let (Some(piece), Some(_)) = (memory.piece(), memory.key) {
            *self.0.state.lock().shown.entry(piece).or_default() += 1;
        }
    }

    /// Counts the blobs that show memory of a snapshot.
    pub fn show_again(&self, memory: &Memory, blobs: u32) {
        if let (Some(piece), Some(_), 1..) = (memory.piece(), memory.key, blobs) {
            *self.0.state.lock().shown.entry(piece).or_default() += blobs as usize;
        }
    }

    /// Returns the number of blobs that show memory which may be kept.
    pub fn shown(&self, memory: &Memory) -> u32 {
        let shown = memory.piece().and_then(|piece| self.0.state.lock().shown.get(&piece).copied());
        shown.map_or(0, |blobs| u32::try_from(blobs).unwrap_or(u32::MAX))
    }

    /// Takes note that a blob of memory is gone, and no other process holds the memory. Returns false if the memory was not shown, or is freed.
    pub fn blob_gone(&self, memory: MemoryId) -> bool {
        let mut state = self.0.state.lock();
        match state.shown.get_mut(&memory) {
            Some(blobs) if *blobs > 1 => *blobs -= 1,
            Some(_) => _ = state.shown.remove(&memory),
            None => return false,
        }
        true
    }

    /// Returns the bytes that [`Self::flush`] would make room for, of the memory that `counts`.
    pub fn room(&self, counts: impl Fn(&Device, &Memory, &ReuseKey) -> bool) -> u64 {
        let state = self.0.state.lock();
        let bytes = |(key, object): (&ReuseKey, &Object)| {
            let memory = sole_memory(object, &state.shown)?;
            object.device.as_ref().is_some_and(|device| counts(device, memory, key)).then_some(key.size)
        };
        state.free_list.iter().filter_map(bytes).sum()
    }

    /// Sets the time for which memory is kept from now on.
    #[cfg(test)]
    pub(crate) fn set_age(&self, age: Duration) {
        self.0.state.lock().free_list.set_age(age);
        self.0.changed.notify_one();
    }

    /// Frees all kept memory, and waits until other threads have freed the memory that they took out. Returns false if nothing was kept.
    pub fn flush(&self) -> bool {
        self.empty(|_| true)
    }

    /// Frees the kept memory of a device, whose memory will not be kept any more.
    pub fn close(&self, device: &Arc<Device>) {
        device.has_ended.store(true, Ordering::SeqCst);
        self.empty(|object| is_of(object, device));
    }

    fn empty(&self, goes: impl Fn(&Object) -> bool) -> bool {
        let mut state = self.0.state.lock();
        let gone = state.free_list.take_all(goes);
        state.forget(&gone);
        // Waits for memory that is being freed already. No other thread finds the list empty before this thread frees the memory that was in it.
        let _freeing = self.0.freeing.lock();
        drop(state);
        let any = !gone.is_empty();
        self.0.free(gone);
        any
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.changed.notify_one();
        self.flush();
    }
}

impl State {
    /// Drops the blob counts of freed memory, for which the device process will not ask.
    fn forget(&mut self, gone: &[Object]) {
        for piece in gone.iter().filter_map(|object| memory(object)?.piece()) {
            self.shown.remove(&piece);
        }
    }
}

impl Shared {
    /// Returns whether a thread frees old memory; starts that thread if there is none.
    fn is_aging(self: &Arc<Self>, state: &mut State) -> bool {
        if !state.has_thread {
            let shared = Arc::clone(self);
            let started = thread::Builder::new().name("pool".into()).spawn(move || shared.age());
            state.has_thread = started.is_ok();
        }
        state.has_thread
    }

    /// Frees objects that are in the list no more, and counts that.
    fn free(&self, gone: Vec<Object>) {
        if !gone.is_empty() {
            gone.into_iter().for_each(free);
            self.freed.count();
        }
    }

    /// Frees old memory until everything ends. Sleeps while nothing is kept.
    fn age(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            let old = state.free_list.take_old(Instant::now());
            if !old.is_empty() {
                state.forget(&old);
                let freeing = self.freeing.lock();
                MutexGuard::unlocked(&mut state, || {
                    self.free(old);
                    drop(freeing);
                });
                continue;
            }
            match state.free_list.next_old() {
                Some(next) => _ = self.changed.wait_until(&mut state, next),
                None => {
                    state.sleeps = true;
                    self.changed.wait(&mut state);
                }
            }
        }
    }
}

fn memory(object: &Object) -> Option<&Memory> {
    object.get::<venus::DeviceMemory>()
}

/// Returns the memory of an object, if no other process has it.
fn sole_memory<'o>(object: &'o Object, shown: &FxHashMap<MemoryId, usize>) -> Option<&'o Memory> {
    let is_shown = |memory: &Memory| memory.piece().is_some_and(|piece| shown.contains_key(&piece));
    memory(object).filter(|memory| memory.is_sole() && !is_shown(memory))
}

fn is_of(object: &Object, device: &Arc<Device>) -> bool {
    object.device.as_ref().is_some_and(|of| Arc::ptr_eq(of, device))
}

fn is_live(object: &Object) -> bool {
    object.device.as_ref().is_some_and(|device| !device.has_ended.load(Ordering::SeqCst))
}

/// Frees an object: the driver's memory first, then its backing.
fn free(object: Object) {
    if let Some(device) = &object.device {
        // SAFETY: a live handle of this device, since its object holds both; nothing used it when it was kept, and only the pool knew it since.
        unsafe { device.destroy(object.kind(), object.raw) };
    }
}
