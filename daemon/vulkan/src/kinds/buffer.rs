//! Buffers: their size, their use and the memory that they are bound to.

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
    /// The usage of the buffer is more than copies.
    pub is_computed_on: bool,
    memory: AtomicBool,
    /// The place where the buffer begins in memory that the device process knows.
    place: Mutex<Option<(MemoryId, u64)>>,
}

impl BufferFacts {
    /// A buffer without memory.
    pub fn new(size: u64, is_computed_on: bool) -> Self {
        Self { size, is_computed_on, memory: AtomicBool::new(false), place: Mutex::new(None) }
    }

    /// Marks the buffer as bound, which it is about to be. Returns whether it was not yet.
    pub fn bind(&self) -> bool {
        !self.memory.swap(true, Ordering::AcqRel)
    }

    /// Notes where the buffer is bound: at an offset in a piece of memory.
    pub fn set_place(&self, memory: MemoryId, offset: u64) {
        *self.place.lock() = Some((memory, offset));
    }

    /// The place of a byte of the buffer, in memory that the device process knows.
    pub fn place(&self, offset: u64) -> Option<(MemoryId, u64)> {
        let (memory, start) = (*self.place.lock())?;
        Some((memory, start.checked_add(offset)?))
    }

    /// Marks the buffer as not bound, which it was not after all.
    pub fn unbind(&self) {
        self.memory.store(false, Ordering::Release);
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
