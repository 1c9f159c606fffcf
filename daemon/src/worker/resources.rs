//! The resources attached to this context. An id of any other resource of the VM means nothing here.

use crate::shm::{MapError, Mapping};
use crate::vulkan::ContextLost;
use parking_lot::RwLock;
use protocol::ids::ResourceId;
use rustc_hash::FxHashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Resource ids and the pages behind them.
#[derive(Debug, Default)]
pub struct Resources {
    table: RwLock<FxHashMap<ResourceId, Option<Arc<Mapping>>>>,
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
        self.table.write().insert(id, mapping);
        result
    }

    /// Attaches a resource whose pages rings and streams have no business in: device memory.
    pub fn attach_memory(&self, id: ResourceId) {
        self.table.write().insert(id, None);
    }

    /// Forgets a resource. Rings and reply streams that use it keep their pages.
    pub fn detach(&self, id: ResourceId) {
        self.table.write().remove(&id);
    }

    /// The pages of an attached shared-memory resource, named by the guest.
    pub fn shared_memory(&self, id: u32) -> Result<Arc<Mapping>, ContextLost> {
        match self.table.read().get(&ResourceId(id)) {
            Some(Some(mapping)) => Ok(Arc::clone(mapping)),
            Some(None) => Err(ContextLost::new(format!("resource {id} is no shared memory"))),
            None => Err(ContextLost::new(format!("resource {id} is not attached"))),
        }
    }
}

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
}
