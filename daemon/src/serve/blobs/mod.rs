//! The memory behind host blobs, by resource, and descriptors of the memory that workers' drivers have made.

pub(super) mod closer;
pub(super) mod closing;
pub(super) mod deposits;
pub(super) mod lenders;
pub(super) mod rings;

use self::lenders::Lenders;
use crate::transport::PassedFiles;
use config::{MemoryBackEnd, MemoryId};
use protocol::ids::{ContextId, ResourceId};
use protocol::venus::generated::VkResult;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use shm::{self, FixedFile, Mapping, ResultWords};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The reason why a worker's descriptor is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BlobError {
    /// A mappable blob came without a descriptor.
    #[error("no descriptor")]
    Missing,
    /// The descriptor is of another kind than this GPU's memory. Accessing a file that can shrink could kill a process that maps it.
    #[error("not a sealed memory file, dma-buf or device, as agreed")]
    WrongKind,
    /// The file is smaller than the blob.
    #[error("too small")]
    TooSmall,
    /// The file is not the memory that was given to the worker, so the device process would not count it.
    #[error("not the memory that was asked for")]
    Foreign,
    /// A driver lends the memory, and no anchor keeps it alive.
    #[error("no process keeps the memory alive")]
    Loose,
}

/// An export that is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Export {
    /// The context whose worker makes the export.
    pub ctx_id: ContextId,
    /// The resource that the export is for.
    pub resource_id: ResourceId,
    /// Bytes.
    pub size: u64,
    /// The guest wants to map it.
    pub mappable: bool,
}

/// The table of memory files.
#[derive(Debug)]
pub(super) struct Blobs {
    /// The kind of file that workers export.
    exported: FixedFile,
    /// The file of each piece, and its device and inode: should the worker die, its successor gets the file.
    made: FxHashMap<MemoryId, (Arc<OwnedFd>, (u64, u64))>,
    files: FxHashMap<ResourceId, File>,
}

/// The table, written down for another process. The descriptors of the resources are sent first, then those of the pieces, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PassedBlobs {
    /// Each resource, with the context whose driver lends its memory, if one does.
    resources: Vec<(ResourceId, Option<ContextId>)>,
    made: Vec<MemoryId>,
}

/// A memory file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::serve) struct SavedFile {
    pub(in crate::serve) bytes: u64,
    /// The piece that the file is, if it counts for a worker.
    pub(in crate::serve) piece: Option<MemoryId>,
    /// The resources whose memory it is.
    pub(in crate::serve) resources: Vec<ResourceId>,
}

/// Memory of a resource.
#[derive(Debug)]
struct File {
    fd: OwnedFd,
    /// The context whose worker lends the memory, if one does: only the frontend gets such memory; this process neither reads nor writes it.
    lender: Option<ContextId>,
}

/// The kind of memory that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The memory exists for as long as a process holds it, or there is none.
    ForGood,
    /// The memory is gone when its worker ends or its driver frees it.
    Lent,
}

impl Blobs {
    /// An empty table; workers export memory of `memory`.
    pub(super) fn new(memory: MemoryBackEnd) -> Self {
        let exported = match memory {
            MemoryBackEnd::Memfd => FixedFile::Memfd,
            MemoryBackEnd::DmaBuf => FixedFile::DmaBuf,
        };
        Self { exported, made: FxHashMap::default(), files: FxHashMap::default() }
    }

    /// Makes zeroed shared memory for a resource.
    pub(super) fn create(&mut self, resource_id: ResourceId, size: u64) -> io::Result<()> {
        let fd = shm::create("virtio-gpu blob", size)?;
        self.files.insert(resource_id, File { fd, lender: None });
        Ok(())
    }

    /// Makes a zeroed memory file for a worker.
    pub(super) fn make(&mut self, memory: MemoryId, size: u64) -> io::Result<OwnedFd> {
        let file = shm::create("vulkan-memory", size)?;
        let (given, identity) = (file.try_clone()?, identity(&file)?);
        self.made.insert(memory, (Arc::new(file), identity));
        Ok(given)
    }

    /// Returns the file of a piece that was made here.
    pub(super) fn made(&self, memory: MemoryId) -> Option<&Arc<OwnedFd>> {
        self.made.get(&memory).map(|(file, _)| file)
    }

    /// Forgets a piece that no worker and no resource holds any more.
    pub(super) fn forget(&mut self, memory: MemoryId) {
        self.made.remove(&memory);
    }

    /// Takes memory that a worker exported, after checking that it cannot harm a process that maps its first `size` bytes, and that it is the piece
    /// `memory`. A device node that `lenders` know is taken from a worker that gave anchors; its driver will tell the frontend how much of it can be
    /// mapped.
    pub(super) fn accept(
        &mut self,
        export: &Export,
        file: Option<OwnedFd>,
        memory: Option<MemoryId>,
        lenders: &Lenders,
    ) -> Result<Taken, BlobError> {
        let Export { ctx_id, resource_id, size, mappable } = *export;
        let Some(file) = file else {
            return if mappable { Err(BlobError::Missing) } else { Ok(Taken::ForGood) };
        };
        let Some(memory) = memory else { return Err(BlobError::Foreign) };
        if shm::device_node(&file).is_some_and(|device| lenders.knows(device)) {
            if !mappable || !lenders.is_anchored(ctx_id) {
                return Err(BlobError::Loose);
            }
            self.files.insert(resource_id, File { fd: file, lender: Some(ctx_id) });
            return Ok(Taken::Lent);
        }
        match shm::inspect(&file) {
            Ok((kind, bytes)) if kind == self.exported => {
                if bytes < size {
                    return Err(BlobError::TooSmall);
                }
            }
            _ => return Err(BlobError::WrongKind),
        }
        // The driver makes a dma-buf, which does not tell its origin.
        let made = || {
            identity(&file)
                .ok()
                .is_some_and(|found| self.made.get(&memory).is_some_and(|(_, made)| *made == found))
        };
        if self.exported == FixedFile::Memfd && !made() {
            return Err(BlobError::Foreign);
        }
        self.files.insert(resource_id, File { fd: file, lender: None });
        Ok(Taken::ForGood)
    }

    /// Returns the memory of a resource; `None` if only its worker can access the memory, or if a worker lends it.
    pub(super) fn get(&self, resource_id: ResourceId) -> Option<BorrowedFd<'_>> {
        self.files.get(&resource_id).filter(|file| file.lender.is_none()).map(|file| file.fd.as_fd())
    }

    /// Returns the file of a resource for the frontend to map, and the context whose worker lends it, if one does.
    pub(super) fn for_frontend(
        &self,
        resource_id: ResourceId,
    ) -> Option<(BorrowedFd<'_>, Option<ContextId>)> {
        self.files.get(&resource_id).map(|file| (file.fd.as_fd(), file.lender))
    }

    /// Stores `VK_ERROR_DEVICE_LOST` where the driver looks for the results of its fences, for a worker that is gone. `shown` names the resource that
    /// shows a piece of memory to the worker's context: no other memory is written.
    pub(super) fn answer_fences(&self, words: &ResultWords, shown: impl Fn(MemoryId) -> Option<ResourceId>) {
        for (memory, offset) in words.told() {
            let Some(file) = shown(MemoryId(memory)).and_then(|resource_id| self.get(resource_id)) else {
                continue;
            };
            // The word is not written through the file, because a dma-buf takes no writes. Offsets are below 16 GiB.
            let mapping = Mapping::new(file, offset + 4).map_err(|error| error.to_string());
            let word =
                mapping.and_then(|mapping| Arc::new(mapping).word(offset).map_err(|error| error.to_string()));
            match word {
                Ok(word) => word.store(VkResult::ERROR_DEVICE_LOST.0 as u32, Ordering::Release),
                Err(error) => log::debug!(offset; "a fence is not answered: {error}"),
            }
        }
    }

    /// Writes the table down for another process, with its descriptors.
    pub(super) fn pass_on(&self) -> (PassedBlobs, Vec<BorrowedFd<'_>>) {
        let passed = PassedBlobs {
            resources: self.files.iter().map(|(id, file)| (*id, file.lender)).collect(),
            made: self.made.keys().copied().collect(),
        };
        let of_resources = self.files.values().map(|file| file.fd.as_fd());
        (passed, of_resources.chain(self.made.values().map(|(file, _)| file.as_fd())).collect())
    }

    /// Goes on with the memory of another process.
    ///
    /// # Errors
    ///
    /// A descriptor is missing, or the system refuses.
    pub(super) fn resume(&mut self, passed: PassedBlobs, files: &mut PassedFiles) -> io::Result<()> {
        for (resource_id, lender) in passed.resources {
            self.files.insert(resource_id, File { fd: files.take()?, lender });
        }
        for memory in passed.made {
            let file = files.take()?;
            let identity = identity(&file)?;
            self.made.insert(memory, (Arc::new(file), identity));
        }
        Ok(())
    }

    /// Writes the memory files down for a state of the device, with their descriptors.
    ///
    /// # Errors
    ///
    /// A driver lends memory, which no other process can have, or the system refuses.
    pub(super) fn save(&self) -> io::Result<(Vec<SavedFile>, Vec<OwnedFd>)> {
        let mut files: BTreeMap<(u64, u64), (SavedFile, &OwnedFd)> = BTreeMap::new();
        for (memory, (file, identity)) in &self.made {
            let saved = SavedFile { bytes: length(file)?, piece: Some(*memory), resources: Vec::new() };
            files.insert(*identity, (saved, file));
        }
        for (resource_id, File { fd, lender }) in &self.files {
            if lender.is_some() {
                return Err(io::Error::other("a driver lends memory that the guest has mapped"));
            }
            let saved = match files.entry(identity(fd)?) {
                Entry::Occupied(there) => &mut there.into_mut().0,
                Entry::Vacant(new) => {
                    let saved = SavedFile { bytes: length(fd)?, piece: None, resources: Vec::new() };
                    &mut new.insert((saved, fd)).0
                }
            };
            saved.resources.push(*resource_id);
        }
        let copied = files.into_values().map(|(saved, file)| Ok((saved, file.try_clone()?)));
        Ok(copied.collect::<io::Result<Vec<_>>>()?.into_iter().unzip())
    }

    /// Makes the memory files of a state, full of zeroes. Returns their descriptors.
    ///
    /// # Errors
    ///
    /// The system refuses; the caller forgets all memory then.
    pub(super) fn load(&mut self, files: &[SavedFile]) -> io::Result<Vec<OwnedFd>> {
        let make = |SavedFile { bytes, piece, resources }: &SavedFile| {
            let name = if piece.is_some() { "vulkan-memory" } else { "virtio-gpu blob" };
            let file = shm::create(name, *bytes)?;
            for resource_id in resources {
                self.files.insert(*resource_id, File { fd: file.try_clone()?, lender: None });
            }
            if let Some(memory) = piece {
                self.made.insert(*memory, (Arc::new(file.try_clone()?), identity(&file)?));
            }
            Ok(file)
        };
        files.iter().map(make).collect()
    }

    /// Forgets all memory, which no driver lends.
    pub(super) fn forget_all(&mut self) {
        self.files.clear();
        self.made.clear();
    }

    /// Lets go of a resource's memory; returns the descriptor of a device, which may take long to close.
    pub(super) fn remove(&mut self, resource_id: ResourceId) -> Option<OwnedFd> {
        self.files.remove(&resource_id).filter(|file| file.lender.is_some()).map(|file| file.fd)
    }
}

fn length(file: &OwnedFd) -> io::Result<u64> {
    u64::try_from(rustix::fs::fstat(file)?.st_size).map_err(io::Error::other)
}

fn identity(file: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::DriverMapped;
    use rustix::fs::makedev;
    use shm::StatusPage;

    const A: ContextId = ContextId(1);

    /// Takes from context 1 memory that its driver cannot lend.
    fn accept(
        blobs: &mut Blobs,
        resource_id: ResourceId,
        file: Option<OwnedFd>,
        memory: Option<MemoryId>,
        size: u64,
        mappable: bool,
    ) -> Result<Taken, BlobError> {
        blobs.accept(&Export { ctx_id: A, resource_id, size, mappable }, file, memory, &Lenders::new([]))
    }

    #[test]
    fn memory_of_a_device_is_taken_from_whom_it_was_granted_and_anchored_by_and_shown_to_the_frontend_alone()
    {
        let open = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
        let mut lenders = Lenders::new([DriverMapped { types: 1, device: makedev(1, 5) }]);
        let mut blobs = Blobs::new(MemoryBackEnd::Memfd);
        let (resource_id, memory) = (ResourceId(1), Some(MemoryId(1)));
        let export = Export { ctx_id: A, resource_id, size: 4096, mappable: true };
        let mut accept = |export: &Export, path: &str, memory, lenders: &Lenders| {
            blobs.accept(export, Some(open(path)), memory, lenders)
        };
        assert_eq!(accept(&export, "/dev/zero", memory, &lenders), Err(BlobError::Loose));
        lenders.anchor(A, Some(open("/dev/full")), 0).unwrap();
        assert_eq!(accept(&export, "/dev/zero", None, &lenders), Err(BlobError::Foreign));
        assert_eq!(accept(&export, "/dev/full", memory, &lenders), Err(BlobError::WrongKind));
        let other = Export { ctx_id: ContextId(2), ..export };
        assert_eq!(accept(&other, "/dev/zero", memory, &lenders), Err(BlobError::Loose));
        assert_eq!(accept(&export, "/dev/zero", memory, &Lenders::new([])), Err(BlobError::WrongKind));
        assert_eq!(accept(&export, "/dev/zero", memory, &lenders), Ok(Taken::Lent));
        assert!(blobs.get(resource_id).is_none());
        assert_eq!(blobs.for_frontend(resource_id).unwrap().1, Some(A));
        blobs.remove(resource_id);
        assert!(blobs.for_frontend(resource_id).is_none());
    }

    #[test]
    fn only_sealed_memory_files_of_sufficient_size_are_taken() {
        let mut blobs = Blobs::new(MemoryBackEnd::Memfd);
        let (id, memory) = (ResourceId(1), Some(MemoryId(1)));
        let made = blobs.make(MemoryId(1), 8192).unwrap();
        let file = || Some(made.try_clone().unwrap());
        assert_eq!(accept(&mut blobs, id, None, None, 4096, true), Err(BlobError::Missing));
        assert_eq!(accept(&mut blobs, id, None, None, 4096, false), Ok(Taken::ForGood));
        assert!(blobs.get(id).is_none());
        assert_eq!(accept(&mut blobs, id, file(), memory, 12288, true), Err(BlobError::TooSmall));
        let unsealed = OwnedFd::from(tempfile::tempfile().unwrap());
        assert_eq!(accept(&mut blobs, id, Some(unsealed), memory, 4096, true), Err(BlobError::WrongKind));
        assert_eq!(accept(&mut blobs, id, file(), memory, 8192, true), Ok(Taken::ForGood));
        assert!(blobs.get(id).is_some());
        blobs.remove(id);
        assert!(blobs.get(id).is_none());
        let mut blobs = Blobs::new(MemoryBackEnd::DmaBuf);
        assert_eq!(accept(&mut blobs, id, file(), memory, 8192, true), Err(BlobError::WrongKind));
    }

    #[test]
    fn fences_are_answered_in_memory_that_the_context_sees_and_nowhere_else() {
        let (seen, hidden) = (ResourceId(1), ResourceId(2));
        let mut blobs = Blobs::new(MemoryBackEnd::Memfd);
        blobs.create(seen, 4096).unwrap();
        blobs.create(hidden, 4096).unwrap();
        let (page, file) = StatusPage::create().unwrap();
        let worker = StatusPage::open(&file).unwrap();
        let words = [(1, 4), (1, 4092), (1, 4096), (1, 1 << 33), (2, 8), (3, 12)];
        let told: Vec<_> =
            words.iter().filter_map(|(memory, at)| worker.results().tell((*memory, *at))).collect();
        assert_eq!(told.len(), words.len());
        blobs.answer_fences(page.results(), |memory| (memory == MemoryId(1)).then_some(seen));
        let written = |id| {
            let mut bytes = [0; 4096];
            rustix::io::pread(blobs.get(id).unwrap(), &mut bytes[..], 0).unwrap();
            let words = bytes.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).enumerate();
            words.filter(|(_, word)| *word != 0).collect::<Vec<_>>()
        };
        assert_eq!(written(seen), [(1, -4), (1023, -4)]);
        assert_eq!(written(hidden), []);
    }

    #[test]
    fn a_worker_cannot_pass_memory_of_its_own_for_what_it_was_given() {
        let mut blobs = Blobs::new(MemoryBackEnd::Memfd);
        let id = ResourceId(1);
        let made = blobs.make(MemoryId(1), 8192).unwrap();
        let own = || Some(shm::create("own", 8192).unwrap());
        let file = || Some(made.try_clone().unwrap());
        for memory in [None, Some(MemoryId(1)), Some(MemoryId(2))] {
            assert_eq!(accept(&mut blobs, id, own(), memory, 4096, true), Err(BlobError::Foreign));
        }
        assert_eq!(accept(&mut blobs, id, file(), Some(MemoryId(2)), 4096, true), Err(BlobError::Foreign));
        assert_eq!(accept(&mut blobs, id, file(), Some(MemoryId(1)), 4096, true), Ok(Taken::ForGood));
        blobs.forget(MemoryId(1));
        assert_eq!(accept(&mut blobs, id, file(), Some(MemoryId(1)), 4096, true), Err(BlobError::Foreign));
    }
}
