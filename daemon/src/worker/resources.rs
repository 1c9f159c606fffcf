//! The resources attached to this context. An id of any other resource of the VM means nothing here.
//!
//! A driver may name a resource on a ring as soon as the device process has answered it, and then the message about it is only
//! on its way to this process. So messages attach resources on arrival, and a ring that misses one waits for it. What is detached
//! is detached in turn with the virtqueue's streams, which may still name it; numbers of messages tell which came first.

use crate::shm::{MapError, Mapping};
use crate::vulkan::{Cancel, ContextLost};
use parking_lot::{Condvar, Mutex};
use protocol::ids::ResourceId;
use rustc_hash::FxHashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Resource ids and the pages behind them.
#[derive(Debug, Default)]
pub struct Resources {
    table: Mutex<FxHashMap<ResourceId, Attached>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct Attached {
    /// None: its pages are no business of rings and streams.
    mapping: Option<Arc<Mapping>>,
    /// The message that attached it.
    number: u64,
}

impl Resources {
    /// Attaches a resource, by message `number`, and maps its first `size` bytes. Attaching an id again replaces what it stood
    /// for. If the pages cannot be mapped the resource is attached all the same, only not usable for streams.
    pub fn attach(&self, id: ResourceId, file: &OwnedFd, size: u64, number: u64) -> Result<(), MapError> {
        let (mapping, result) = match Mapping::new(file, size) {
            Ok(mapping) => (Some(Arc::new(mapping)), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.insert(id, Attached { mapping, number });
        result
    }

    /// Attaches a resource whose pages rings and streams have no business in: device memory.
    pub fn attach_memory(&self, id: ResourceId, number: u64) {
        self.insert(id, Attached { mapping: None, number });
    }

    /// Forgets what was attached before message `number`. Rings and reply streams that use it keep their pages.
    pub fn detach(&self, id: ResourceId, number: u64) {
        let mut table = self.table.lock();
        if table.get(&id).is_some_and(|attached| attached.number < number) {
            table.remove(&id);
        }
    }

    /// The pages of a shared-memory resource that is attached by now.
    pub fn shared_memory(&self, id: u32) -> Result<Arc<Mapping>, ContextLost> {
        usable(self.table.lock().get(&ResourceId(id)), id)
    }

    /// The same for streams that can overtake the message about it: waits for it, but not for ever.
    pub fn wait_shared_memory(&self, id: u32, cancel: &Cancel) -> Result<Arc<Mapping>, ContextLost> {
        let mut table = self.table.lock();
        let start = Instant::now();
        while !table.contains_key(&ResourceId(id)) && !cancel.is_cancelled() && start.elapsed() < ARRIVAL_MAX
        {
            self.arrived.wait_for(&mut table, Duration::from_millis(20));
        }
        usable(table.get(&ResourceId(id)), id)
    }

    fn insert(&self, id: ResourceId, attached: Attached) {
        let mut table = self.table.lock();
        if table.get(&id).is_none_or(|older| older.number < attached.number) {
            table.insert(id, attached);
        }
        self.arrived.notify_all();
    }
}

fn usable(attached: Option<&Attached>, id: u32) -> Result<Arc<Mapping>, ContextLost> {
    match attached {
        Some(Attached { mapping: Some(mapping), .. }) => Ok(Arc::clone(mapping)),
        Some(_) => Err(ContextLost::new(format!("resource {id} is no shared memory"))),
        None => Err(ContextLost::new(format!("resource {id} is not attached"))),
    }
}

/// A message about a resource that takes longer than this to arrive does not exist.
const ARRIVAL_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm;

    #[test]
    fn only_attached_shared_memory_is_found() {
        let resources = Resources::default();
        let file = shm::create("test", 4096).unwrap();
        resources.attach(ResourceId(1), &file, 4096, 1).unwrap();
        resources.attach_memory(ResourceId(2), 2);
        assert!(resources.attach(ResourceId(3), &file, 8192, 3).is_err());
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
        resources.attach(ResourceId(1), &file, 4096, 1).unwrap();
        resources.attach(ResourceId(1), &file, 8192, 3).unwrap();
        resources.detach(ResourceId(1), 2);
        assert_eq!(resources.shared_memory(1).unwrap().len(), 8192);
        resources.attach_memory(ResourceId(1), 2);
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
            resources.attach(ResourceId(1), &shm::create("test", 4096).unwrap(), 4096, 1).unwrap();
            assert_eq!(found.join().unwrap(), Ok(4096));
            cancel.cancel();
            assert!(cancelled.join().unwrap().is_err());
        });
    }
}
