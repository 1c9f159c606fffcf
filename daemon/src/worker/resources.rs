//! The resources attached to this context. An id of any other resource of the VM means nothing here.

use crate::shm::{MapError, Mapping};
use crate::vulkan::ContextLost;
use parking_lot::{Condvar, Mutex};
use protocol::ids::ResourceId;
use rustc_hash::FxHashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Resource ids and the pages behind them.
#[derive(Debug, Default)]
pub struct Resources {
    table: Mutex<FxHashMap<ResourceId, Option<Arc<Mapping>>>>,
    attached: Condvar,
}

impl Resources {
    /// Attaches a resource and maps its first `size` bytes. Attaching an id again replaces what it stood for. If the pages cannot
    /// be mapped the resource is attached all the same, only not usable for streams.
    pub fn attach(&self, id: ResourceId, file: &OwnedFd, size: u64) -> Result<(), MapError> {
        let mapped = Mapping::new(file, size);
        let (mapping, result) = match mapped {
            Ok(mapping) => (Some(Arc::new(mapping)), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.table.lock().insert(id, mapping);
        self.attached.notify_all();
        result
    }

    /// Attaches a resource whose pages rings and streams have no business in: device memory.
    pub fn attach_memory(&self, id: ResourceId) {
        self.table.lock().insert(id, None);
        self.attached.notify_all();
    }

    /// Forgets a resource. Rings and reply streams that use it keep their pages.
    pub fn detach(&self, id: ResourceId) {
        self.table.lock().remove(&id);
    }

    /// The pages of an attached shared-memory resource, named by the guest. The guest may name it on a ring a moment before the
    /// device process' message about it is read here, so an unknown one is waited for.
    pub fn shared_memory(&self, id: u32) -> Result<Arc<Mapping>, ContextLost> {
        let mut table = self.table.lock();
        let deadline = Instant::now() + ATTACH_WAIT_MAX;
        while !table.contains_key(&ResourceId(id)) {
            if self.attached.wait_until(&mut table, deadline).timed_out() {
                break;
            }
        }
        match table.get(&ResourceId(id)) {
            Some(Some(mapping)) => Ok(Arc::clone(mapping)),
            Some(None) => Err(ContextLost::new(format!("resource {id} is no shared memory"))),
            None => Err(ContextLost::new(format!("resource {id} is not attached"))),
        }
    }
}

/// How long a message from the device process may be under way. A guest that names what does not exist waits in vain as long.
const ATTACH_WAIT_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm;

    #[test]
    fn only_attached_shared_memory_is_found() {
        let resources = Resources::default();
        let file = shm::create("test", 4096).unwrap();
        resources.attach(ResourceId(1), &file, 4096).unwrap();
        resources.attach_memory(ResourceId(2));
        assert!(resources.attach(ResourceId(3), &file, 8192).is_err());
        assert_eq!(resources.shared_memory(1).unwrap().len(), 4096);
        for id in [0, 2, 3, 4] {
            assert!(resources.shared_memory(id).is_err());
        }
        let kept = resources.shared_memory(1).unwrap();
        resources.detach(ResourceId(1));
        assert!(resources.shared_memory(1).is_err());
        kept.copy_in(0, b"still mapped").unwrap();
    }

    #[test]
    fn a_resource_that_is_about_to_be_attached_is_waited_for() {
        let resources = Resources::default();
        let file = shm::create("test", 4096).unwrap();
        std::thread::scope(|scope| {
            let found = scope.spawn(|| resources.shared_memory(7).is_ok());
            std::thread::sleep(Duration::from_millis(20));
            resources.attach(ResourceId(7), &file, 4096).unwrap();
            assert!(found.join().unwrap());
        });
    }
}
