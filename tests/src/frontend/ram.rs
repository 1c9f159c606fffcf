//! Guest memory: one shared memfd; the virtqueues and the requests on them take parts of it.
//!
//! Knows nothing of virtqueues or of the backend with which it is shared.

use super::ranges::Ranges;
use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::sync::{Mutex, PoisonError};
use vhost::VhostUserMemoryRegionInfo;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

/// The memory of the pretended guest.
pub struct GuestRam {
    memory: GuestMemoryMmap,
    free: Mutex<Ranges>,
}

impl GuestRam {
    /// The guest physical address at which the memory begins: not 0, so that an address and an offset differ.
    pub const BASE: u64 = 0x4000_0000;

    /// `size` bytes, a multiple of the page size.
    pub fn new(size: u64) -> Result<Self> {
        let file = File::from(memfd_create("guest-ram", MemfdFlags::CLOEXEC).context("guest memory")?);
        ftruncate(&file, size).context("size of guest memory")?;
        let region = (GuestAddress(Self::BASE), usize::try_from(size)?, Some(FileOffset::new(file, 0)));
        Ok(Self {
            memory: GuestMemoryMmap::from_ranges_with_files([region])?,
            free: Mutex::new(Ranges::new(Self::BASE, size, 64)),
        })
    }

    /// Memory of its own with the same bytes and the same parts taken.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn copy(&self) -> Result<Self> {
        let size = self.region()?.memory_size;
        let copy = Self::new(size)?;
        let mut bytes = vec![0; usize::try_from(size)?];
        self.memory.read_slice(&mut bytes, GuestAddress(Self::BASE))?;
        copy.memory.write_slice(&bytes, GuestAddress(Self::BASE))?;
        *copy.free.lock().unwrap_or_else(PoisonError::into_inner) =
            self.free.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(copy)
    }

    /// Access to the bytes, by guest physical address.
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// The region that a vhost-user backend has to know to map this memory.
    pub fn region(&self) -> Result<VhostUserMemoryRegionInfo> {
        let region = self.memory.iter().next().context("guest memory has one region")?;
        Ok(VhostUserMemoryRegionInfo::from_guest_region(region)?)
    }

    /// This memory as `count` regions, one after the other.
    pub fn regions(&self, count: u64) -> Result<Vec<VhostUserMemoryRegionInfo>> {
        let whole = self.region()?;
        let piece = (whole.memory_size / count).next_multiple_of(4096);
        let part = |start: u64| VhostUserMemoryRegionInfo {
            guest_phys_addr: whole.guest_phys_addr + start,
            memory_size: piece.min(whole.memory_size - start),
            userspace_addr: whole.userspace_addr + start,
            mmap_offset: whole.mmap_offset + start,
            mmap_handle: whole.mmap_handle,
        };
        Ok((0..whole.memory_size).step_by(usize::try_from(piece)?).map(part).collect())
    }

    /// The address in this process of a guest physical address (vring addresses are sent in this form).
    pub fn host_address(&self, address: u64) -> Result<u64> {
        Ok(self.memory.get_host_address(GuestAddress(address))? as u64)
    }

    /// Removes all but the first `size` bytes, for the backend and for this process, which must not access them any more.
    pub fn shrink(&self, size: u64) -> Result<()> {
        let region = self.memory.iter().next().context("guest memory has one region")?;
        let file = region.file_offset().context("guest memory is a file")?;
        Ok(file.file().set_len(size)?)
    }

    /// A 64-byte aligned part of the memory; `None` when it is exhausted.
    pub fn allocate(&self, len: u64) -> Option<u64> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).allocate(len)
    }

    /// Frees a part that [`Self::allocate`] returned.
    pub fn release(&self, address: u64, len: u64) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).release(address, len);
    }
}
