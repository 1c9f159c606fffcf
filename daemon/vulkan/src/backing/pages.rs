//! Pages of ours: a memory file, mapped, that a driver imports and that a VMM can map.

use crate::context::allowance::{MemoryFile, Piece};
use ash::vk;
use shm::{self, MapError, Mapping};
use std::ffi::c_void;
use std::io;
use std::sync::Arc;

/// Pages that both a driver and a VMM can map.
#[derive(Debug)]
pub struct Pages {
    file: Arc<MemoryFile>,
    /// Unmapped on drop; the driver's import was freed before (see `Device::destroy` and `free_memory`).
    mapping: Mapping,
}

impl Pages {
    /// Zeroed pages for a trial, at least `size` bytes, in multiples of `alignment`, which is a power of two.
    pub fn new(size: u64, alignment: u64) -> io::Result<Self> {
        let size = rounded(size, alignment).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = MemoryFile::new(shm::create("vulkan-memory", size)?, Piece::uncounted());
        let mapping = Mapping::new(&file, size).map_err(io::Error::other)?;
        Ok(Self { file: Arc::new(file), mapping })
    }

    /// The first pages of a file that holds a guest's memory, at least `size` bytes; if possible at an address that a successor can have again
    /// ([`Self::is_placed`]).
    pub fn of_file(file: &Arc<MemoryFile>, size: u64, alignment: u64) -> Result<Self, MapError> {
        let mapping = Mapping::new_placed(file.as_ref(), rounded(size, alignment).unwrap_or(u64::MAX))?;
        Ok(Self { file: Arc::clone(file), mapping })
    }

    /// The first pages of a file, like [`Self::of_file`], at the address at which another process had them.
    ///
    /// # Errors
    ///
    /// The file is smaller, or the address is not available.
    pub fn of_file_at(
        file: &Arc<MemoryFile>,
        size: u64,
        alignment: u64,
        address: u64,
    ) -> Result<Self, MapError> {
        let size = rounded(size, alignment).unwrap_or(u64::MAX);
        let mapping = Mapping::new_at(file.as_ref(), size, address)?;
        Ok(Self { file: Arc::clone(file), mapping })
    }

    /// Makes the pages zero again, while they are in no use.
    pub fn clear(&self) {
        self.mapping.clear();
    }

    /// The address at which the pages are mapped in this process.
    pub fn address(&self) -> *mut c_void {
        self.mapping.as_ptr()
    }

    /// Returns whether another process can map the pages at the same address ([`Self::of_file_at`]).
    pub fn is_placed(&self) -> bool {
        self.mapping.is_placed()
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.mapping.len()
    }

    /// The file that the pages belong to.
    pub fn file(&self) -> Arc<MemoryFile> {
        Arc::clone(&self.file)
    }

    /// Returns whether no other object of this process is made of the pages, or may be.
    pub fn is_sole(&self) -> bool {
        Arc::strong_count(&self.file) == 1 && self.file.piece.is_sole()
    }

    /// The struct that lets `vkAllocateMemory` import the pages.
    pub fn import(&self) -> vk::ImportMemoryHostPointerInfoEXT<'static> {
        vk::ImportMemoryHostPointerInfoEXT {
            handle_type: vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT,
            p_host_pointer: self.address(),
            ..Default::default()
        }
    }
}

/// Returns the bytes in whole pages, at least one page; none if the number is too large.
pub(crate) fn rounded(size: u64, alignment: u64) -> Option<u64> {
    size.max(1).checked_next_multiple_of(alignment.max(rustix::param::page_size() as u64))
}
