//! Descriptor pools and their descriptor sets: whoever allocates, writes, frees or resets holds the pool's lock meanwhile.

use super::layout::SetLayout;
use crate::context::error::Fault;
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

/// The descriptor sets that are allocated from a pool: by the host's handle, the guest's id and the usage.
#[derive(Debug, Default)]
pub struct Sets {
    /// Sets that are allocated.
    pub live: FxHashMap<u64, (u64, Arc<Usage>)>,
    /// The submissions of sets that were freed while they were pending: the driver still has them.
    pub left: Submitted,
    destroyed: bool,
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

    /// Locks a pool that another ring may have destroyed since it was looked up.
    pub fn lock_alive(&self) -> Result<MutexGuard<'_, Sets>, Fault> {
        let sets = self.lock();
        match sets.destroyed {
            false => Ok(sets),
            true => Err(Fault::invalid("a descriptor pool is used while it is destroyed")),
        }
    }
}

impl Sets {
    /// Returns whether a set is still allocated.
    pub fn has(&self, set: &DescriptorSet) -> bool {
        self.live.contains_key(&set.raw)
    }

    /// The submissions that any set is in.
    pub fn submitted(&self) -> Submitted {
        self.live.values().fold(self.left.clone(), |all, (_, usage)| all.and(&usage.submitted()))
    }

    /// Marks the pool as destroyed, and takes all sets out, as the guest's ids.
    pub fn close(&mut self) -> Vec<u64> {
        self.destroyed = true;
        self.clear()
    }

    pub fn clear(&mut self) -> Vec<u64> {
        self.live.drain().map(|(_, (id, _))| id).collect()
    }
}

/// Locks the pools of sets that are all still allocated.
pub(crate) fn lock_pools(sets: &[Arc<DescriptorSet>]) -> Result<SmallVec<[MutexGuard<'_, Sets>; 2]>, Fault> {
    let mut pools: SmallVec<[_; 2]> = sets.iter().map(|set| &set.pool).collect();
    pools.sort_by_key(|pool| Arc::as_ptr(pool));
    pools.dedup_by_key(|pool| Arc::as_ptr(pool));
    let locked: SmallVec<[_; 2]> = pools.iter().map(|pool| pool.lock()).collect();
    for set in sets {
        let at = pools.iter().position(|pool| Arc::ptr_eq(pool, &set.pool));
        if !at.is_some_and(|at| locked[at].has(set)) {
            return Err(Fault::invalid("a descriptor set is updated while it is freed"));
        }
    }
    Ok(locked)
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
