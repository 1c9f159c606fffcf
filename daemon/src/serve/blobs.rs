//! The memory behind host blobs, by resource.

use crate::config::MemoryBackEnd;
use crate::shm::{self, FixedFile};
use protocol::ids::ResourceId;
use rustc_hash::FxHashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Why a worker's descriptor is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    /// A mappable blob came without one.
    #[error("no descriptor")]
    Missing,
    /// Not what this GPU's memory is made of. Accessing a file that can shrink could kill whoever maps it.
    #[error("not a sealed memory file or dma-buf, as agreed")]
    WrongKind,
    /// Smaller than the blob.
    #[error("too small")]
    TooSmall,
}

/// The table.
#[derive(Debug)]
pub struct Blobs {
    /// What workers export.
    exported: FixedFile,
    files: FxHashMap<ResourceId, OwnedFd>,
}

impl Blobs {
    /// An empty table; workers export memory of `memory`.
    pub fn new(memory: MemoryBackEnd) -> Self {
        let exported = match memory {
            MemoryBackEnd::Memfd => FixedFile::Memfd,
            MemoryBackEnd::DmaBuf => FixedFile::DmaBuf,
        };
        Self { exported, files: FxHashMap::default() }
    }

    /// Makes zeroed shared memory for a resource.
    pub fn create(&mut self, resource_id: ResourceId, size: u64) -> io::Result<()> {
        self.files.insert(resource_id, shm::create("virtio-gpu blob", size)?);
        Ok(())
    }

    /// Takes what a worker exported, after checking that it cannot harm whoever maps its first `size` bytes.
    pub fn accept(
        &mut self,
        resource_id: ResourceId,
        file: Option<OwnedFd>,
        size: u64,
        mappable: bool,
    ) -> Result<(), BlobError> {
        let Some(file) = file else {
            return if mappable { Err(BlobError::Missing) } else { Ok(()) };
        };
        match shm::inspect(&file) {
            Ok((kind, bytes)) if kind == self.exported => {
                if bytes < size {
                    return Err(BlobError::TooSmall);
                }
            }
            _ => return Err(BlobError::WrongKind),
        }
        self.files.insert(resource_id, file);
        Ok(())
    }

    /// The memory of a resource; `None` for one that nobody but its worker can access.
    pub fn get(&self, resource_id: ResourceId) -> Option<BorrowedFd<'_>> {
        self.files.get(&resource_id).map(AsFd::as_fd)
    }

    /// Lets go of a resource's memory.
    pub fn remove(&mut self, resource_id: ResourceId) {
        self.files.remove(&resource_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sealed_memory_files_of_sufficient_size_are_taken() {
        let mut blobs = Blobs::new(MemoryBackEnd::Memfd);
        let id = ResourceId(1);
        let file = || Some(shm::create("test", 8192).unwrap());
        assert_eq!(blobs.accept(id, None, 4096, true), Err(BlobError::Missing));
        assert_eq!(blobs.accept(id, None, 4096, false), Ok(()));
        assert!(blobs.get(id).is_none());
        assert_eq!(blobs.accept(id, file(), 12288, true), Err(BlobError::TooSmall));
        let unsealed = OwnedFd::from(tempfile::tempfile().unwrap());
        assert_eq!(blobs.accept(id, Some(unsealed), 4096, true), Err(BlobError::WrongKind));
        assert_eq!(blobs.accept(id, file(), 8192, true), Ok(()));
        assert!(blobs.get(id).is_some());
        blobs.remove(id);
        assert!(blobs.get(id).is_none());
        let mut blobs = Blobs::new(MemoryBackEnd::DmaBuf);
        assert_eq!(blobs.accept(id, file(), 8192, true), Err(BlobError::WrongKind));
    }
}
