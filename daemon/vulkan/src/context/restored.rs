//! Memory and addresses that a snapshot brings along, kept until the commands that make their objects are executed.

use super::allowance::MemoryFile;
use super::cause::InheritedError;
use super::error::Fault;
use ash::vk;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The memory files of allocations that are still to be made, descriptors of the driver's memory, the opaque addresses of memory and buffers,
/// allocations whose contents come later, and allocations that are to be filled out of the driver's memory, all by the guest's ids; and the data
/// of pipeline caches. All of this is empty unless a snapshot is being rebuilt.
#[derive(Debug, Default)]
pub struct Restored {
    /// False while all of this is empty, so that the look-up costs a creation next to nothing.
    any: AtomicBool,
    all: Mutex<FxHashMap<u64, Box<RestoredMemory>>>,
    addresses: Mutex<FxHashMap<u64, u64>>,
    filled: Mutex<FilledLater>,
    exported: Mutex<FxHashMap<u64, Arc<MemoryFile>>>,
    refilled: Mutex<Vec<(u64, Arc<MemoryFile>)>>,
    caches: Mutex<FxHashMap<u64, Box<[u8]>>>,
    /// True once a GPU was seen. `is_elsewhere` is true once a GPU was seen that the predecessor did not have, or that has another driver.
    has_seen_gpus: AtomicBool,
    is_elsewhere: AtomicBool,
}

/// Allocations whose contents come after all objects are made, by the guest's ids: they are not cleared when they are made.
#[derive(Debug, Default)]
struct FilledLater {
    /// The allocations that are still to be made.
    awaited: FxHashSet<u64>,
    /// The allocations that were made, and hold old bytes of the memory.
    made: FxHashSet<u64>,
}

/// The memory file of an allocation.
#[derive(Clone, Debug)]
pub struct RestoredMemory {
    /// The file.
    pub file: Arc<MemoryFile>,
    /// The bytes of the file that belong to the allocation, in whole pages.
    pub size: u64,
    /// The address at which its first byte has to be mapped; 0 if any address will do.
    pub address: u64,
    /// The number of blobs that show the memory.
    pub shown: u32,
}

impl Restored {
    /// Adds the memory of an allocation. Returns false if there are `limit` already, or one with the same id.
    pub fn add(&self, id: u64, memory: RestoredMemory, limit: usize) -> bool {
        let mut all = self.all.lock();
        self.any.store(true, Ordering::Relaxed);
        all.len() < limit && all.insert(id, Box::new(memory)).is_none()
    }

    /// Removes and returns the memory of an allocation that is made now.
    #[inline]
    pub fn take(&self, id: u64) -> Option<Box<RestoredMemory>> {
        if self.any.load(Ordering::Relaxed) { self.take_of_some(id) } else { None }
    }

    #[cold]
    fn take_of_some(&self, id: u64) -> Option<Box<RestoredMemory>> {
        self.all.lock().remove(&id)
    }

    /// Adds the opaque address of a buffer or of memory. Returns false if there are `limit` already, or one with the same id.
    pub fn add_address(&self, id: u64, address: u64, limit: usize) -> bool {
        let mut addresses = self.addresses.lock();
        self.any.store(true, Ordering::Relaxed);
        addresses.len() < limit && addresses.insert(id, address).is_none()
    }

    /// Removes and returns the opaque address of a buffer or of memory that is made now.
    #[inline]
    pub fn take_address(&self, id: u64) -> Option<u64> {
        if self.any.load(Ordering::Relaxed) { self.take_address_of_some(id) } else { None }
    }

    #[cold]
    fn take_address_of_some(&self, id: u64) -> Option<u64> {
        self.addresses.lock().remove(&id)
    }

    /// Notes that the contents of an allocation, which is made next, come later. Returns false if there are `limit` such already.
    pub fn add_filled(&self, id: u64, limit: usize) -> bool {
        let mut filled = self.filled.lock();
        self.any.store(true, Ordering::Relaxed);
        filled.awaited.insert(id);
        filled.awaited.len() + filled.made.len() <= limit
    }

    /// Returns whether the contents of an allocation that is made now come later.
    #[inline]
    pub fn take_filled(&self, id: u64) -> bool {
        self.any.load(Ordering::Relaxed) && self.take_filled_of_some(id)
    }

    #[cold]
    fn take_filled_of_some(&self, id: u64) -> bool {
        let mut filled = self.filled.lock();
        let is_awaited = filled.awaited.remove(&id);
        if is_awaited {
            filled.made.insert(id);
        }
        is_awaited
    }

    /// Forgets the allocations that do not exist any more, which need no contents.
    pub fn forget_gone(&self, exists: impl Fn(u64) -> bool) {
        self.filled.lock().made.retain(|id| exists(*id));
    }

    /// Adds the driver's memory of an allocation. Returns false if there are `limit` already, or one with the same id.
    pub fn add_exported(&self, id: u64, file: Arc<MemoryFile>, limit: usize) -> bool {
        let mut exported = self.exported.lock();
        self.any.store(true, Ordering::Relaxed);
        exported.len() < limit && exported.insert(id, file).is_none()
    }

    /// Removes and returns the driver's memory of an allocation that is made now.
    #[inline]
    pub fn take_exported(&self, id: u64) -> Option<Arc<MemoryFile>> {
        if self.any.load(Ordering::Relaxed) { self.exported.lock().remove(&id) } else { None }
    }

    /// Notes that an allocation, which is made now, is to be filled out of the driver's memory that it had before.
    pub fn add_refilled(&self, id: u64, file: Arc<MemoryFile>) {
        self.refilled.lock().push((id, file));
    }

    /// Removes and returns the allocations that are to be filled out of the memory that they had before.
    pub fn take_refilled(&self) -> Vec<(u64, Arc<MemoryFile>)> {
        std::mem::take(&mut self.refilled.lock())
    }

    /// Adds the data of the cache of an id, or of our cache of a device. Returns false if there are `limit` such already.
    pub fn add_cache_data(&self, id: u64, sealed: &[u8], limit: usize) -> bool {
        let mut caches = self.caches.lock();
        self.any.store(true, Ordering::Relaxed);
        caches.insert(id, sealed.into());
        caches.len() <= limit
    }

    /// Removes and returns the data of the cache that is made now, or of our cache of the device that is made now.
    #[inline]
    pub fn take_cache_data(&self, id: u64) -> Option<Box<[u8]>> {
        if self.any.load(Ordering::Relaxed) { self.caches.lock().remove(&id) } else { None }
    }

    /// Notes whether a GPU is the predecessor's, and has the same driver: otherwise the GPU cannot take the predecessor's memory.
    pub fn see_gpu(&self, is_same: bool) {
        self.has_seen_gpus.store(true, Ordering::Relaxed);
        self.is_elsewhere.fetch_or(!is_same, Ordering::Relaxed);
    }

    /// Returns whether at least one GPU was seen, and all GPUs and drivers that were seen are those of the predecessor.
    pub fn is_at_home(&self) -> bool {
        self.has_seen_gpus.load(Ordering::Relaxed) && !self.is_elsewhere.load(Ordering::Relaxed)
    }

    /// Notes that the contents of these allocations come next.
    pub fn are_filled(&self, ids: impl Iterator<Item = u64>) {
        let mut filled = self.filled.lock();
        ids.for_each(|id| _ = filled.made.remove(&id));
    }

    /// Forgets everything that is left. Returns whether all was used, except for the data of pipeline caches, which need not be.
    pub fn clear(&self) -> bool {
        let none_unfilled = std::mem::take(&mut self.filled.lock().made).is_empty();
        self.clear_ahead() && none_unfilled
    }

    /// As [`Self::clear`], but behind a prelude: the contents of allocations that were made come with a later part.
    pub fn clear_ahead(&self) -> bool {
        let (mut all, mut addresses, mut filled) =
            (self.all.lock(), self.addresses.lock(), self.filled.lock());
        self.any.store(!filled.made.is_empty(), Ordering::Relaxed);
        self.caches.lock().clear();
        let none_filled = std::mem::take(&mut filled.awaited).is_empty();
        let mut exported = self.exported.lock();
        let mut refilled = self.refilled.lock();
        let none_exported = exported.is_empty() && refilled.is_empty();
        let were_empty = all.is_empty() && addresses.is_empty() && none_filled && none_exported;
        (*exported, *refilled) = Default::default();
        (*all, *addresses) = Default::default();
        were_empty
    }
}

/// Demands that the driver has not refused the opaque address that a snapshot brings along.
///
/// # Errors
///
/// The driver has refused the address: the context cannot be as it was.
pub(crate) fn demand_given(address: Option<u64>, result: i32) -> Result<(), Fault> {
    let refused = result == vk::Result::ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS.as_raw();
    match address {
        Some(_) if refused => Err(InheritedError::Fails {
            what: "the driver does not give an object the address that it had",
            result,
        }
        .into()),
        _ => Ok(()),
    }
}
