//! The object table of a context: the guest's object id to the host's handle, with its kind, owner and origin.
//!
//! Ids are chosen by the guest, one space for all kinds; none names two objects at a time. An id whose creation failed stays as a tombstone
//! with the result, because the guest goes on using it until it learns of the failure (EXT_command_serialization is asynchronous). A guest's driver
//! that has learnt of the failure may give the id to a new object, as Mesa 23.2 does. An object that is unusable although the host has it, such as a
//! buffer that could not be bound to memory, stays in the same way. Every live entry keeps the bytes of the command that made it, so that a snapshot
//! can be rebuilt.

use super::encoding::Kept;
use super::object::{Handle, Kind, Object};
use super::origin::Remains;
use crate::context::cause::{Limit, StreamError};
use crate::context::error::{ContextLost, Fault};
use crate::context::ranked::{ForReading, OBJECTS, RankedShared};
use crate::logical::device::Device;
use config::ContextLimits;
use protocol::venus::generated::ObjectType;
use rustc_hash::FxHashMap;
use std::collections::hash_map::{Entry as Slot, OccupiedEntry, VacantEntry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The reason why an object has no place in the table.
#[derive(Debug)]
pub enum Unplaced {
    /// A limit is reached; the object is handed back to be destroyed.
    Full(Limit, Box<Object>),
    /// The stream is wrong.
    Lost(ContextLost),
}

/// An entry of the table.
#[derive(Debug)]
enum Entry {
    Live(Object),
    Failed(ObjectType, i32),
    /// An object that can only be destroyed; for all other commands it is as if its creation had failed.
    Unbound(Object, i32),
}

impl Entry {
    /// Returns the kind of object that the entry stands for.
    fn kind(&self) -> ObjectType {
        match self {
            Self::Live(object) | Self::Unbound(object, _) => object.kind(),
            Self::Failed(kind, _) => *kind,
        }
    }
}

/// The table behind its lock.
#[derive(Debug, Default)]
pub struct Table {
    entries: FxHashMap<u64, Entry>,
    /// The number of entries that stand for no object, as its creation failed.
    failed: usize,
    /// Bytes of the commands that made the objects of the other entries, and of those that wait to be destroyed.
    described: Kept,
    max_objects: usize,
    max_described: u64,
    /// The place of the last creation or binding among all that a snapshot repeats.
    last_serial: AtomicU64,
}

/// The object table, locked for reading.
pub(crate) type TableGuard<'a> = ForReading<'a, OBJECTS, Table>;

/// The object table, shared by all rings of a context.
#[derive(Debug)]
pub struct Objects {
    table: RankedShared<OBJECTS, Table>,
    described: Kept,
}

impl Objects {
    /// Creates an empty table.
    pub fn new(limits: &ContextLimits) -> Self {
        let (max_objects, max_described) = (limits.objects, limits.shader_bytes);
        let described = Kept::default();
        let table = Table { max_objects, max_described, described: described.clone(), ..Table::default() };
        Self { table: RankedShared::new(table), described }
    }

    /// Returns the counter of the bytes that are kept of commands that made objects.
    pub fn described(&self) -> &Kept {
        &self.described
    }

    /// Locks for reading.
    pub(crate) fn read(&self) -> TableGuard<'_> {
        self.table.read()
    }

    /// Binds an id to an object.
    pub fn insert(&self, id: u64, object: Object) -> Result<(), Unplaced> {
        self.table.write().insert(id, object)
    }

    /// Remembers that the object was not created.
    pub fn insert_failed(&self, id: u64, kind: ObjectType, result: i32) -> Result<(), ContextLost> {
        self.table.write().insert_failed(id, kind, result)
    }

    /// Lets an object only be destroyed from now on; any other command that names it fails with `result`.
    pub fn fail<H: Handle>(&self, handle: H, result: i32) {
        let mut table = self.table.write();
        if let Some(entry) = table.entries.get_mut(&handle.id()) {
            let failed = Entry::Failed(H::KIND, result);
            *entry = match std::mem::replace(entry, failed) {
                Entry::Live(object) if object.kind() == H::KIND => Entry::Unbound(object, result),
                other => other,
            };
        }
    }

    /// Lets an object of a kind only be destroyed from now on, like [`Self::fail`]. Returns whether it exists.
    pub fn fail_as(&self, id: u64, kind: ObjectType, result: i32) -> bool {
        let mut table = self.table.write();
        let Some(entry) = table.entries.get_mut(&id).filter(|entry| entry.kind() == kind) else {
            return false;
        };
        let failed = Entry::Failed(kind, result);
        match std::mem::replace(entry, failed) {
            Entry::Live(object) => *entry = Entry::Unbound(object, result),
            other => {
                *entry = other;
                return false;
            }
        }
        true
    }

    /// Removes and returns an object: none for `VK_NULL_HANDLE` and for an object that was never created.
    pub fn remove<H: Handle>(&self, handle: H) -> Result<Option<Object>, ContextLost> {
        if handle.id() == 0 {
            return Ok(None);
        }
        let Table { entries, failed, .. } = &mut *self.table.write();
        match entries.entry(handle.id()) {
            Slot::Occupied(entry) if entry.get().kind() == H::KIND => Ok(end(entry, failed)),
            Slot::Occupied(entry) => Err(mismatch(handle.id(), H::KIND, Some(entry.get()))),
            Slot::Vacant(_) => Err(mismatch(handle.id(), H::KIND, None)),
        }
    }

    /// Changes an object in place.
    pub fn update<H: Handle, T>(&self, handle: H, change: impl FnOnce(&mut Object) -> T) -> Result<T, Fault> {
        let mut table = self.table.write();
        match table.entries.get_mut(&handle.id()) {
            Some(Entry::Live(object)) if object.kind() == H::KIND => Ok(change(object)),
            found => Err(unusable(handle.id(), H::KIND, found.map(|e| &*e))),
        }
    }

    /// Removes ids, whatever they stand for; ids that are gone already are skipped.
    pub fn forget(&self, ids: impl IntoIterator<Item = u64>) {
        let mut table = self.table.write();
        for id in ids {
            table.take(id);
        }
    }

    /// Returns the state of the object that a handle names; the table is not locked any more.
    pub fn shared<H: Kind>(&self, handle: H) -> Result<Arc<H::State>, Fault> {
        self.read().get(handle)?.shared::<H>()
    }

    /// Removes and returns everything that belongs to `device`.
    pub fn drain_device(&self, device: &Arc<Device>) -> Vec<Object> {
        let mut table = self.table.write();
        let ids: Vec<u64> = table
            .entries
            .iter()
            .filter(|(_, e)| matches!(e, Entry::Live(o) | Entry::Unbound(o, _) if o.device.as_ref().is_some_and(|d| Arc::ptr_eq(d, device))))
            .map(|(id, _)| *id)
            .collect();
        ids.iter().filter_map(|id| table.take(*id)).collect()
    }

    /// Removes and returns the state of every object of the kind `H` that is left.
    pub fn drain<H: Kind>(&self) -> Vec<Arc<H::State>> {
        let mut table = self.table.write();
        let state = |(id, entry): (&u64, &Entry)| match entry {
            Entry::Live(object) => object.get_shared::<H>().map(|state| (*id, state)),
            _ => None,
        };
        let found: Vec<_> = table.entries.iter().filter_map(state).collect();
        let states = found.into_iter().map(|(id, state)| {
            table.take(id);
            state
        });
        states.collect()
    }

    /// Forgets everything.
    pub fn clear(&self) {
        let mut table = self.table.write();
        table.entries.clear();
        table.failed = 0;
    }

    /// Returns the ids of the live objects of a kind, oldest first.
    pub fn ids(&self, kind: ObjectType) -> Vec<u64> {
        let table = self.read();
        let of_kind = |(id, entry): (&u64, &Entry)| match entry {
            Entry::Live(object) if object.kind() == kind => Some(*id),
            _ => None,
        };
        let mut ids: Vec<u64> = table.entries.iter().filter_map(of_kind).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the encoding of the command that created an object, if it lives.
    pub fn created_by(&self, id: u64) -> Option<Box<[u8]>> {
        match self.read().entries.get(&id) {
            Some(Entry::Live(object)) => object.created_by.as_ref().map(|bytes| (**bytes).into()),
            _ => None,
        }
    }
}

impl Table {
    /// Returns the object that an id names.
    #[inline]
    pub fn get<H: Handle>(&self, handle: H) -> Result<&Object, Fault> {
        self.find(handle.id(), H::KIND)
    }

    /// Finds an object. This is one function for all kinds, which keeps its callers short.
    #[inline(never)]
    fn find(&self, id: u64, kind: ObjectType) -> Result<&Object, Fault> {
        match self.entries.get(&id) {
            Some(Entry::Live(object)) if object.kind() == kind => Ok(object),
            found => Err(unusable(id, kind, found)),
        }
    }

    fn insert(&mut self, id: u64, object: Object) -> Result<(), Unplaced> {
        let full = self.limit_reached();
        let serial = self.last_serial.get_mut();
        *serial += 1;
        let serial = *serial;
        let slot = self.vacant(id).map_err(Unplaced::Lost)?;
        if let Some(limit) = full {
            return Err(Unplaced::Full(limit, Box::new(object)));
        }
        object.usage.set_serial(serial);
        slot.insert(Entry::Live(object));
        Ok(())
    }

    /// Returns the present place in the order of all that a snapshot repeats. A thread that binds memory holds the table locked for reading
    /// meanwhile, so no object that relies on the binding is created before it.
    pub fn next_serial(&self) -> u64 {
        self.last_serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns all objects, in no order: the id, the object, and the result with which commands that name it fail, if they do.
    pub fn objects(&self) -> impl Iterator<Item = (u64, &Object, Option<i32>)> {
        self.entries.iter().filter_map(|(id, entry)| match entry {
            Entry::Live(object) => Some((*id, object, None)),
            Entry::Unbound(object, result) => Some((*id, object, Some(*result))),
            Entry::Failed(..) => None,
        })
    }

    /// Returns all failed creations, in no order: the id, the kind, and the result with which commands that name it fail.
    pub fn failures(&self) -> impl Iterator<Item = (u64, ObjectType, i32)> {
        self.entries.iter().filter_map(|(id, entry)| match entry {
            Entry::Failed(kind, result) => Some((*id, *kind, *result)),
            _ => None,
        })
    }

    /// Returns whether there is an object with an id and of a kind.
    pub fn has(&self, id: u64, kind: ObjectType) -> bool {
        let entry = self.entries.get(&id);
        entry.is_some_and(|entry| entry.kind() == kind && !matches!(entry, Entry::Failed(..)))
    }

    /// Returns whether an object can only be destroyed.
    pub fn is_only_destroyed(&self, id: u64) -> bool {
        matches!(self.entries.get(&id), Some(Entry::Unbound(..)))
    }

    /// Returns the number of objects.
    pub fn count(&self) -> usize {
        self.entries.len() - self.failed
    }

    /// Returns the limit that keeps another object out.
    fn limit_reached(&self) -> Option<Limit> {
        if self.entries.len() - self.failed >= self.max_objects {
            return Some(Limit::Objects(self.max_objects));
        }
        (self.described.bytes() > self.max_described).then_some(Limit::ShaderMemory(self.max_described))
    }

    /// Adds a tombstone. Tombstones have a limit of their own, as large as that of objects: a guest that makes so many does not look at failures.
    fn insert_failed(&mut self, id: u64, kind: ObjectType, result: i32) -> Result<(), ContextLost> {
        if matches!(self.entries.get(&id), Some(Entry::Failed(same, _)) if *same == kind) {
            return Ok(());
        }
        let (failed, max_objects) = (self.failed, self.max_objects);
        let slot = self.vacant(id)?;
        if failed >= max_objects {
            return Err(Limit::FailedObjects(max_objects).into());
        }
        slot.insert(Entry::Failed(kind, result));
        self.failed += 1;
        Ok(())
    }

    /// Returns the slot of an id that names no object.
    fn vacant(&mut self, id: u64) -> Result<VacantEntry<'_, u64, Entry>, ContextLost> {
        if self.failed > 0 && matches!(self.entries.get(&id), Some(Entry::Failed(..))) {
            self.take(id);
        }
        match self.entries.entry(id) {
            _ if id == 0 => Err(StreamError::Without("an id").into()),
            Slot::Occupied(_) => Err(StreamError::IdInUse(id).into()),
            Slot::Vacant(slot) => Ok(slot),
        }
    }

    /// Removes an entry of any kind.
    fn take(&mut self, id: u64) -> Option<Object> {
        match self.entries.entry(id) {
            Slot::Occupied(entry) => end(entry, &mut self.failed),
            Slot::Vacant(_) => None,
        }
    }
}

/// Removes an entry, and returns its object, which then no longer exists for the guest. `failed` is the number of entries without one.
fn end(mut entry: OccupiedEntry<'_, u64, Entry>, failed: &mut usize) -> Option<Object> {
    let id = *entry.key();
    match entry.get_mut() {
        Entry::Live(object) | Entry::Unbound(object, _) => {
            let (kind, created_by) = (object.kind(), &mut object.created_by);
            let remains = || created_by.take().map(|created_by| Remains { id, kind, created_by });
            object.usage.end_leaving(remains);
        }
        Entry::Failed(..) => *failed -= 1,
    }
    match entry.remove() {
        Entry::Live(object) | Entry::Unbound(object, _) => Some(object),
        Entry::Failed(..) => None,
    }
}

impl From<Unplaced> for ContextLost {
    fn from(unplaced: Unplaced) -> Self {
        match unplaced {
            Unplaced::Full(limit, _) => limit.into(),
            Unplaced::Lost(lost) => lost,
        }
    }
}

/// Returns the reason why an entry that is no live object of the kind cannot be used.
#[cold]
fn unusable(id: u64, wanted: ObjectType, found: Option<&Entry>) -> Fault {
    match found {
        Some(Entry::Failed(kind, result)) if *kind == wanted => Fault::Failed(*result),
        Some(Entry::Unbound(object, result)) if object.kind() == wanted => Fault::Failed(*result),
        found => mismatch(id, wanted, found).into(),
    }
}

fn mismatch(id: u64, wanted: ObjectType, found: Option<&Entry>) -> ContextLost {
    ContextLost::from(match found {
        None => StreamError::NoObject { id, wanted },
        Some(entry) => StreamError::OtherKind { id, found: entry.kind(), wanted },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::object::StateOf;
    use crate::objects::origin::Origin;
    use ash::vk;
    use protocol::venus::generated as venus;

    /// Mesa 23.2 gives the id to its next object.
    #[test]
    fn an_id_whose_creation_failed_can_name_another_object() {
        let objects = Objects::new(&ContextLimits::default());
        let insert = |id| {
            let origin = Origin::from(objects.described().keep(&[]));
            objects.insert(id, Object::new(7, None, StateOf::<venus::Sampler>::none(), origin))
        };
        let failure = vk::Result::ERROR_OUT_OF_HOST_MEMORY.as_raw();
        objects.insert_failed(5, ObjectType::BUFFER, failure).unwrap();
        objects.insert_failed(5, ObjectType::IMAGE, failure).unwrap();
        insert(5).unwrap();
        {
            let table = objects.read();
            assert!(table.has(5, ObjectType::SAMPLER));
            assert_eq!((table.count(), table.failures().count()), (1, 0));
        }
        assert!(matches!(insert(5), Err(Unplaced::Lost(_))), "it is in use");
        assert!(objects.insert_failed(5, ObjectType::BUFFER, failure).is_err());
    }
}
