//! Buffers: their size, their use and the memory that they are bound to.

use super::bound::Bound;
use crate::context::error::{Fault, demand};
use crate::objects::object::{Kind, State};
use config::MemoryId;
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::sync::atomic::{AtomicBool, Ordering};

/// The facts about a buffer that the object table keeps.
#[derive(Debug)]
pub struct BufferFacts {
    /// Bytes.
    pub size: u64,
    /// True if the usage of the buffer is more than copies.
    pub is_computed_on: bool,
    /// True if the buffer has an address that a successor can give it again.
    pub replays: bool,
    memory: AtomicBool,
    /// True if the guest knows the buffer's address.
    is_addressed: AtomicBool,
    /// The memory that the buffer is bound to, and the number by which the device process knows the memory.
    bound: Mutex<Option<(Bound, Option<MemoryId>)>>,
}

impl BufferFacts {
    /// A buffer without memory.
    pub fn new(size: u64, is_computed_on: bool, replays: bool) -> Self {
        let (memory, is_addressed, bound) = Default::default();
        Self { size, is_computed_on, replays, memory, is_addressed, bound }
    }

    /// Marks a buffer that is about to be bound as bound. Returns false if it was bound already.
    pub fn bind(&self) -> bool {
        !self.memory.swap(true, Ordering::AcqRel)
    }

    /// Notes where the buffer is bound, and the piece that its memory belongs to.
    pub fn set_bound(&self, bound: Bound, piece: Option<MemoryId>) {
        *self.bound.lock() = Some((bound, piece));
    }

    /// Returns where the buffer is bound.
    pub fn bound(&self) -> Option<Bound> {
        self.bound.lock().filter(|_| self.has_memory()).map(|(bound, _)| bound)
    }

    /// The place of a byte of the buffer, in memory that the device process knows.
    pub fn place(&self, offset: u64) -> Option<(MemoryId, u64)> {
        let (bound, piece) = (*self.bound.lock())?;
        Some((piece?, bound.offset.checked_add(offset)?))
    }

    /// Marks the buffer as not bound, because its binding has failed.
    pub fn unbind(&self) {
        self.memory.store(false, Ordering::Release);
    }

    /// Notes that the guest learns the buffer's address.
    pub fn note_address(&self) {
        self.is_addressed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the guest knows the buffer's address.
    pub fn is_addressed(&self) -> bool {
        self.is_addressed.load(Ordering::Relaxed)
    }

    /// Returns whether the buffer has memory.
    pub fn has_memory(&self) -> bool {
        self.memory.load(Ordering::Acquire)
    }

    /// Demands that a range lies in a buffer that has memory.
    #[inline]
    pub fn demand(&self, offset: u64, size: u64, rule: &'static str) -> Result<(), Fault> {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.size);
        demand(inside && self.has_memory(), rule)
    }
}

impl State for BufferFacts {}

impl Kind for venus::Buffer {
    type State = BufferFacts;
}
