//! Descriptor pools and their descriptor sets: a thread that allocates, writes, frees or resets holds the pool's lock meanwhile.

use super::descriptors::{Contents, Span};
use super::layout::SetLayout;
use crate::context::error::{Fault, inconsistent};
use crate::logical::submitted::Submitted;
use crate::objects::object::{Kind, State};
use crate::objects::usage::Usage;
use parking_lot::{Mutex, MutexGuard};
use protocol::venus::generated as venus;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// A descriptor pool.
#[derive(Debug)]
pub struct DescriptorPool {
    /// The host's handle.
    pub raw: u64,
    sets: Mutex<Sets>,
}

/// The descriptor sets that are allocated from a pool.
#[derive(Debug, Default)]
pub struct Sets {
    /// Sets that are allocated, by the host's handle.
    pub live: FxHashMap<u64, LiveSet>,
    /// The submissions of sets that were freed while they were pending: the driver still has them.
    pub left: Submitted,
    destroyed: bool,
}

/// A set as its pool knows it.
#[derive(Debug)]
pub struct LiveSet {
    /// The guest's id.
    pub id: u64,
    /// The set's usage.
    pub usage: Arc<Usage>,
    /// The set's descriptors.
    pub contents: Contents,
}

/// A descriptor set.
#[derive(Debug)]
pub struct DescriptorSet {
    /// The host's handle.
    pub raw: u64,
    /// The pool that it was allocated from.
    pub pool: Arc<DescriptorPool>,
    /// The layout that it was made from.
    pub layout: Arc<SetLayout>,
    /// Descriptors in the binding whose count is variable.
    pub variable_count: u32,
}

impl DescriptorPool {
    pub fn new(raw: u64) -> Self {
        Self { raw, sets: Mutex::default() }
    }

    /// Locks the pool and all that is allocated from it.
    pub fn lock(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock()
    }

    /// Locks a pool, unless another ring has destroyed it since it was looked up.
    pub fn lock_alive(&self) -> Result<MutexGuard<'_, Sets>, Fault> {
        let sets = self.lock();
        match sets.destroyed {
            false => Ok(sets),
            true => Err(Fault::invalid("a descriptor pool is used while it is destroyed")),
        }
    }
}

impl Sets {
    /// Returns the descriptors of a set.
    ///
    /// # Errors
    ///
    /// The set is not allocated any more.
    #[inline]
    pub fn contents(&mut self, set: &DescriptorSet) -> Result<&mut Contents, Fault> {
        let live = self.live.get_mut(&set.raw);
        let live = live.ok_or_else(|| Fault::invalid("a descriptor set is updated while it is freed"))?;
        Ok(&mut live.contents)
    }

    /// The submissions that any set is in.
    pub fn submitted(&self) -> Submitted {
        self.live.values().fold(self.left.clone(), |all, set| all.and(&set.usage.submitted()))
    }

    /// Marks the pool as destroyed, and takes all sets out; returns the guest's ids of the sets.
    pub fn close(&mut self) -> Vec<u64> {
        self.destroyed = true;
        self.clear()
    }

    pub fn clear(&mut self) -> Vec<u64> {
        self.live.drain().map(|(_, set)| set.id).collect()
    }
}

impl DescriptorSet {
    /// Notes a write in the set's descriptors.
    #[inline]
    pub fn write(&self, contents: &mut Contents, write: &venus::WriteDescriptorSet<'_>) {
        contents.write(&self.layout.facts, self.variable_count, write);
    }

    fn span(&self, number: u32, element: u32) -> Span<'_> {
        Span { facts: &self.layout.facts, variable_count: self.variable_count, number, element }
    }
}

/// The pools of the sets of one command, which all threads lock in the same order.
pub(crate) struct LockedPools<'l> {
    pools: SmallVec<[(*const DescriptorPool, MutexGuard<'l, Sets>); 2]>,
}

impl<'l> LockedPools<'l> {
    /// Locks the pools of sets.
    ///
    /// # Errors
    ///
    /// One of the sets is not allocated any more.
    pub(crate) fn lock(sets: &'l [Arc<DescriptorSet>]) -> Result<Self, Fault> {
        let mut pools: SmallVec<[_; 2]> = sets.iter().map(|set| &set.pool).collect();
        pools.sort_by_key(|pool| Arc::as_ptr(pool));
        pools.dedup_by_key(|pool| Arc::as_ptr(pool));
        let pools = pools.iter().map(|pool| (Arc::as_ptr(pool), pool.lock())).collect();
        let mut locked = Self { pools };
        sets.iter().try_for_each(|set| locked.contents(set).map(drop))?;
        Ok(locked)
    }

    /// Notes the writes and copies of `vkUpdateDescriptorSets`; `sets` are those that [`Self::lock`] was given: one for all successive writes
    /// into the same set, and two for each copy.
    pub(crate) fn note(
        &mut self,
        sets: &[Arc<DescriptorSet>],
        writes: &[venus::WriteDescriptorSet<'_>],
        copies: &[venus::CopyDescriptorSet<'_>],
    ) {
        let (written, copied) = sets.split_at(sets.len().saturating_sub(2 * copies.len()));
        let mut written = written.iter();
        for writes in writes.chunk_by(|one, next| one.dst_set == next.dst_set) {
            let Some(set) = written.next() else { return };
            let Ok(contents) = self.contents(set) else { continue };
            writes.iter().for_each(|write| set.write(contents, write));
        }
        for (copy, sets) in copies.iter().zip(copied.chunks_exact(2)) {
            let (from, to) = (&sets[0], &sets[1]);
            let source = from.span(copy.src_binding, copy.src_array_element);
            let target = to.span(copy.dst_binding, copy.dst_array_element);
            let Ok(contents) = self.contents(from) else { continue };
            let copied = contents.copied(&source, copy.descriptor_count);
            if let Ok(contents) = self.contents(to) {
                contents.paste(&target, &copied);
            }
        }
    }

    fn contents(&mut self, set: &DescriptorSet) -> Result<&mut Contents, Fault> {
        let pool = self.pools.iter_mut().find(|(pool, _)| *pool == Arc::as_ptr(&set.pool));
        let (_, sets) = pool.ok_or_else(inconsistent)?;
        sets.contents(set)
    }
}

impl State for DescriptorPool {
    fn close(&self) {
        self.lock().close();
    }
}

impl Kind for venus::DescriptorPool {
    type State = DescriptorPool;
}

impl State for DescriptorSet {}

impl Kind for venus::DescriptorSet {
    type State = DescriptorSet;
}
