//! The resources attached to this context. An id of any other resource of the VM means nothing here.
//!
//! As soon as the device process has answered the guest about a resource, a driver may name it on a ring. The message about the resource may still be
//! on its way to this process then. So messages attach resources on arrival, and a ring that misses a resource waits for its message. Resources are
//! detached in turn with the virtqueue's streams, which may still name them; message numbers tell the order.
//!
//! Shared memory carries rings and streams; device memory can only be imported.

use super::patience::patience;
use config::MemoryId;
use parking_lot::{Condvar, Mutex};
use protocol::ids::ResourceId;
use rustc_hash::FxHashMap;
use shm::{MapError, Mapping};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vulkan::{
    Cancel, ContextLost, Interrupted, MemoryFile, ResourceMemory, ResourceTable, Stop, StreamError,
};

/// Resource ids and the memory behind them.
#[derive(Debug, Default)]
pub(super) struct Resources {
    table: Mutex<FxHashMap<ResourceId, Attached>>,
    arrived: Condvar,
}

/// The memory that came with the message about a resource.
#[derive(Debug)]
pub(super) enum Arriving {
    /// Memory for rings and streams.
    Shared(OwnedFd),
    /// Memory to be imported.
    Device {
        /// The memory.
        file: MemoryFile,
        /// The guest can map it.
        mappable: bool,
    },
    /// Nothing that can be used.
    Opaque,
    /// Nothing yet.
    Expected,
}

#[derive(Debug)]
struct Attached {
    what: Memory,
    /// The message that attached it.
    number: u64,
}

#[derive(Clone, Debug)]
enum Memory {
    /// For rings and streams.
    Shared(Arc<Mapping>),
    /// For imports.
    Device(Arc<ResourceMemory>),
    /// Memory that no command can use here.
    Opaque,
    /// Device memory that is still being exported.
    Expected,
}

impl Resources {
    /// Attaches a resource, by message `number`: its first `size` bytes. An id that is attached again stands for the new resource. If that should
    /// be shared memory but cannot be mapped, it is attached all the same, only not usable for anything.
    pub(super) fn attach(
        &self,
        id: ResourceId,
        what: Arriving,
        size: u64,
        number: u64,
    ) -> Result<(), MapError> {
        let (what, result) = match what {
            Arriving::Expected => (Memory::Expected, Ok(())),
            Arriving::Opaque => (Memory::Opaque, Ok(())),
            Arriving::Shared(file) => match Mapping::new(file, size) {
                Ok(mapping) => (Memory::Shared(Arc::new(mapping)), Ok(())),
                Err(error) => (Memory::Opaque, Err(error)),
            },
            Arriving::Device { file, mappable } => {
                (Memory::Device(Arc::new(ResourceMemory { file: Arc::new(file), size, mappable })), Ok(()))
            }
        };
        self.insert(id, Attached { what, number });
        result
    }

    /// Attaches device memory of this context's own, or a resource that no command can use.
    pub(super) fn attach_memory(&self, id: ResourceId, memory: Option<ResourceMemory>, number: u64) {
        let what = memory.map_or(Memory::Opaque, |memory| Memory::Device(Arc::new(memory)));
        self.insert(id, Attached { what, number });
    }

    /// Forgets a resource that was attached before message `number`. Rings and reply streams that use it keep their pages.
    pub(super) fn detach(&self, id: ResourceId, number: u64) {
        let mut table = self.table.lock();
        if table.get(&id).is_some_and(|attached| attached.number < number) {
            table.remove(&id);
            self.arrived.notify_all();
        }
    }

    /// Returns the pages of a shared-memory resource that is attached by now.
    pub(super) fn shared_memory(&self, id: u32) -> Result<Arc<Mapping>, ContextLost> {
        shared(self.table.lock().get(&ResourceId(id)), id)
    }

    /// Returns the same pages for a stream that can overtake the message about the resource: waits for that message for a bounded time.
    pub(super) fn wait_shared_memory(&self, id: u32, cancel: &Cancel) -> Result<Arc<Mapping>, ContextLost> {
        let table = self.table.lock();
        shared(self.wait(table, ResourceId(id), cancel)?.get(&ResourceId(id)), id)
    }

    fn insert(&self, id: ResourceId, attached: Attached) {
        let mut table = self.table.lock();
        if table.get(&id).is_none_or(|older| older.number <= attached.number) {
            table.insert(id, attached);
        }
        self.arrived.notify_all();
    }

    /// Returns the file of a resource that is this piece of memory, if the context sees one.
    pub(super) fn file_of(&self, memory: MemoryId) -> Option<Arc<MemoryFile>> {
        let table = self.table.lock();
        let found = table.values().find_map(|attached| match &attached.what {
            Memory::Device(device) if device.file.piece.memory == Some(memory) => Some(&device.file),
            _ => None,
        });
        found.map(Arc::clone)
    }

    /// Waits until it is settled which resource an id stands for.
    fn wait<'a>(
        &self,
        mut table: Table<'a>,
        id: ResourceId,
        cancel: &Cancel,
    ) -> Result<Table<'a>, Interrupted> {
        let start = Instant::now();
        loop {
            let patience = match table.get(&id).map(|attached| &attached.what) {
                None => ARRIVAL_MAX,
                Some(Memory::Expected) => EXPORT_MAX,
                Some(_) => return Ok(table),
            };
            match cancel.stop() {
                Some(Stop::Interrupted) => return Err(Interrupted),
                Some(Stop::Cancelled) => return Ok(table),
                None if start.elapsed() >= patience => return Ok(table),
                None => {}
            }
            self.arrived.wait_for(&mut table, Duration::from_millis(20));
        }
    }
}

type Table<'a> = parking_lot::MutexGuard<'a, FxHashMap<ResourceId, Attached>>;

impl ResourceTable for Resources {
    fn device_memory(
        &self,
        resource_id: u32,
        cancel: &Cancel,
    ) -> Result<Option<Arc<ResourceMemory>>, Interrupted> {
        let id = ResourceId(resource_id);
        let table = self.wait(self.table.lock(), id, cancel)?;
        Ok(match table.get(&id).map(|attached| &attached.what) {
            Some(Memory::Device(memory)) => Some(Arc::clone(memory)),
            _ => None,
        })
    }
}

fn shared(attached: Option<&Attached>, id: u32) -> Result<Arc<Mapping>, ContextLost> {
    match attached.map(|attached| &attached.what) {
        Some(Memory::Shared(mapping)) => Ok(Arc::clone(mapping)),
        Some(_) => Err(StreamError::NotShared(ResourceId(id)).into()),
        None => Err(StreamError::NotAttached(ResourceId(id)).into()),
    }
}

/// A message about a resource that takes longer than this to arrive does not exist. A fuzzer does not wait.
const ARRIVAL_MAX: Duration = if cfg!(feature = "fuzzing") { Duration::from_millis(1) } else { patience(5) };

/// The longest time that a ring waits for another context to export its memory.
const EXPORT_MAX: Duration = patience(60);

#[cfg(test)]
mod tests {
    use super::*;
    use vulkan::Piece;

    fn device_memory(file: OwnedFd, mappable: bool) -> Arriving {
        Arriving::Device { file: MemoryFile::new(file, Piece::uncounted()), mappable }
    }

    fn attach(
        resources: &Resources,
        id: u32,
        file: &OwnedFd,
        size: u64,
        number: u64,
    ) -> Result<(), MapError> {
        let file = file.try_clone().unwrap();
        resources.attach(ResourceId(id), Arriving::Shared(file), size, number)
    }

    #[test]
    fn only_attached_shared_memory_is_found() {
        let resources = Resources::default();
        let file = shm::create("test", 4096).unwrap();
        attach(&resources, 1, &file, 4096, 1).unwrap();
        resources.attach_memory(ResourceId(2), None, 2);
        assert!(attach(&resources, 3, &file, 8192, 3).is_err());
        assert_eq!(resources.shared_memory(1).unwrap().len(), 4096);
        for id in [0, 2, 3, 4] {
            assert!(resources.shared_memory(id).is_err());
        }
        let kept = resources.shared_memory(1).unwrap();
        resources.detach(ResourceId(1), 4);
        assert!(resources.shared_memory(1).is_err());
        kept.copy_in(0, b"still mapped").unwrap();
    }

    #[test]
    fn a_late_detach_does_not_hit_what_the_id_stands_for_by_now() {
        let resources = Resources::default();
        let file = shm::create("test", 8192).unwrap();
        attach(&resources, 1, &file, 4096, 1).unwrap();
        attach(&resources, 1, &file, 8192, 3).unwrap();
        resources.detach(ResourceId(1), 2);
        assert_eq!(resources.shared_memory(1).unwrap().len(), 8192);
        resources.attach_memory(ResourceId(1), None, 2);
        assert_eq!(resources.shared_memory(1).unwrap().len(), 8192);
        resources.detach(ResourceId(1), 4);
        assert!(resources.shared_memory(1).is_err());
    }

    #[test]
    fn a_ring_waits_for_a_resource_that_is_on_its_way_unless_cancelled() {
        let resources = Resources::default();
        let cancel = Cancel::default();
        std::thread::scope(|scope| {
            let found = scope.spawn(|| resources.wait_shared_memory(1, &cancel).map(|mapping| mapping.len()));
            let cancelled = scope.spawn(|| resources.wait_shared_memory(2, &cancel));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!found.is_finished() && !cancelled.is_finished());
            attach(&resources, 1, &shm::create("test", 4096).unwrap(), 4096, 1).unwrap();
            assert_eq!(found.join().unwrap(), Ok(4096));
            cancel.cancel();
            assert!(cancelled.join().unwrap().is_err());
        });
    }

    #[test]
    fn device_memory_is_for_imports_and_shared_memory_is_not() {
        let resources = Resources::default();
        let cancel = Cancel::default();
        let file = || shm::create("test", 8192).unwrap();
        attach(&resources, 1, &file(), 4096, 1).unwrap();
        resources.attach(ResourceId(2), device_memory(file(), true), 4096, 2).unwrap();
        resources.attach(ResourceId(3), Arriving::Opaque, 4096, 3).unwrap();
        let memory = resources.device_memory(2, &cancel).unwrap().unwrap();
        assert!(memory.mappable);
        assert_eq!(memory.size, 4096);
        assert!(resources.shared_memory(2).is_err());
        assert!(resources.device_memory(1, &cancel).unwrap().is_none());
        assert!(resources.device_memory(3, &cancel).unwrap().is_none());
        resources.detach(ResourceId(2), 4);
        cancel.cancel();
        assert!(resources.device_memory(2, &cancel).unwrap().is_none());
    }

    #[test]
    fn an_import_waits_for_the_export_it_needs_until_it_is_answered() {
        let resources = Resources::default();
        let cancel = Cancel::default();
        let expected = |id, number| {
            resources.attach(ResourceId(id), Arriving::Expected, 4096, number).unwrap();
        };
        (1..=3).for_each(|id| expected(id, u64::from(id)));
        std::thread::scope(|scope| {
            let waits = |id| {
                let (resources, cancel) = (&resources, &cancel);
                scope.spawn(move || resources.device_memory(id, cancel).unwrap().is_some())
            };
            let (exported, opaque, cancelled) = (waits(1), waits(2), waits(3));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!exported.is_finished() && !opaque.is_finished() && !cancelled.is_finished());
            // Streams do not wait for an expected resource: it is never shared memory.
            assert!(resources.shared_memory(1).is_err());
            let file = shm::create("test", 4096).unwrap();
            resources.attach(ResourceId(1), device_memory(file, false), 4096, 4).unwrap();
            resources.attach(ResourceId(2), Arriving::Opaque, 4096, 5).unwrap();
            assert_eq!((exported.join().unwrap(), opaque.join().unwrap()), (true, false));
            cancel.cancel();
            assert!(!cancelled.join().unwrap());
        });
    }
}
