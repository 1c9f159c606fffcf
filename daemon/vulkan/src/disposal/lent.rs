//! Memory that a guest has freed while it could still be mapped.
//!
//! Memory that the driver maps by itself belongs to another allocation as soon as the driver has freed it, even while a process has it mapped. So such
//! memory is lent: for each blob that was made of it, the device process says when the blob is not mapped any more and never will be. Until then the
//! driver's memory stays, together with its device and its place in the limits.

use crate::objects::object::Object;
use config::MemoryId;
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use rustc_hash::FxHashMap;

/// The memory that is lent, and the freed objects that have to wait for its return.
#[derive(Debug, Default)]
pub(crate) struct Lent(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of blobs that show each memory.
    blobs: FxHashMap<MemoryId, usize>,
    /// Objects that the guest has freed and the driver has not.
    objects: Vec<Object>,
}

impl Lent {
    /// Counts a blob that is about to be made of this memory.
    pub(crate) fn lend(&self, memory: MemoryId) {
        *self.0.lock().blobs.entry(memory).or_default() += 1;
    }

    /// Takes note that a blob of this memory is gone, and returns the objects that may be freed now.
    pub(crate) fn return_one(&self, memory: MemoryId) -> Vec<Object> {
        let mut lent = self.0.lock();
        match lent.blobs.get_mut(&memory) {
            Some(blobs) if *blobs > 1 => {
                *blobs -= 1;
                return Vec::new();
            }
            Some(_) => _ = lent.blobs.remove(&memory),
            // A blob of other memory, which is freed already.
            None => return Vec::new(),
        }
        let State { blobs, objects } = &mut *lent;
        let is_back = |object: &mut Object| name(object).is_none_or(|memory| !blobs.contains_key(&memory));
        objects.extract_if(.., is_back).collect()
    }

    /// Keeps an object that is lent; returns any other, to be destroyed.
    pub(crate) fn keep(&self, object: Object) -> Option<Object> {
        let Some(memory) = name(&object) else { return Some(object) };
        let mut lent = self.0.lock();
        if lent.blobs.contains_key(&memory) {
            lent.objects.push(object);
            return None;
        }
        Some(object)
    }

    /// Returns whether memory is lent: the driver must then not be told that this process is done.
    pub(crate) fn is_lending(&self) -> bool {
        !self.0.lock().blobs.is_empty()
    }
}

/// Returns the number of an object that is memory which can be lent.
fn name(object: &Object) -> Option<MemoryId> {
    object.get::<venus::DeviceMemory>()?.lent()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::memory::{Made, Memory};
    use crate::context::allowance::{Lease, MemoryFile, Piece};
    use crate::objects::encoding::Kept;
    use crate::objects::object::StateOf;
    use std::sync::Arc;

    const LENT: MemoryId = MemoryId(1);

    fn object(made: Made) -> Object {
        let state = StateOf::<venus::DeviceMemory>::of(Memory::once(made));
        Object::new(1, None, state, Kept::default().keep(&[]))
    }

    fn mapped(memory: MemoryId) -> Object {
        let file = shm::create("test", 4096).unwrap();
        let piece = Piece::new(memory, Lease::new(|| ()));
        object(Made::DriverMapped(Arc::new(MemoryFile::new(file, piece))))
    }

    #[test]
    fn memory_stays_until_its_last_blob_is_gone() {
        let lent = Lent::default();
        lent.lend(LENT);
        lent.lend(LENT);
        assert!(lent.keep(mapped(LENT)).is_none());
        assert!(lent.return_one(LENT).is_empty() && lent.is_lending());
        assert_eq!(lent.return_one(LENT).len(), 1);
        assert!(!lent.is_lending());
    }

    #[test]
    fn what_is_not_lent_does_not_wait() {
        let lent = Lent::default();
        assert!(lent.keep(mapped(LENT)).is_some());
        assert!(lent.keep(object(Made::private(None, None))).is_some());
        lent.lend(LENT);
        assert!(lent.keep(mapped(MemoryId(2))).is_some());
        // Memory that is freed after its blob is gone is not kept.
        assert!(lent.return_one(LENT).is_empty());
        assert!(lent.keep(mapped(LENT)).is_some());
    }
}
