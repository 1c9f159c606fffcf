//! Guest memory as the frontend announces it.

use rustix::fs::{FileType, fstat};
use std::fs::File;
use std::io;
use std::sync::Arc;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result};
use vm_memory::{GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap, GuestRegionMmap};

/// The memory both threads see.
pub type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// Where a region is in the frontend's address space, in which it names the virtqueues.
#[derive(Clone, Copy, Debug)]
struct FrontendRange {
    user_addr: u64,
    size: u64,
    guest_addr: u64,
}

/// The memory table, owned by the message thread.
#[derive(Debug)]
pub struct MemoryTable {
    memory: Memory,
    ranges: Vec<FrontendRange>,
}

impl MemoryTable {
    /// An empty table that publishes to `memory`.
    pub fn new(memory: Memory) -> Self {
        Self { memory, ranges: Vec::new() }
    }

    /// Regions announced.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Replaces all regions.
    pub fn set(&mut self, regions: &[VhostUserMemoryRegion], files: Vec<File>) -> Result<()> {
        let mapped: Result<Vec<_>> =
            regions.iter().zip(files).map(|(region, file)| map(region, file).map(Arc::new)).collect();
        let memory = GuestMemoryMmap::from_arc_regions(mapped?).map_err(refused)?;
        self.publish(memory)?;
        self.ranges = regions.iter().map(range).collect();
        Ok(())
    }

    /// Adds a region.
    pub fn add(&mut self, region: &VhostUserMemoryRegion, file: File) -> Result<()> {
        let memory = self.memory.memory().insert_region(Arc::new(map(region, file)?)).map_err(refused)?;
        self.publish(memory)?;
        self.ranges.push(range(region));
        Ok(())
    }

    /// Removes a region.
    pub fn remove(&mut self, region: &VhostUserMemoryRegion) -> Result<()> {
        let (addr, size) = (GuestAddress(region.guest_phys_addr), region.memory_size);
        let (memory, _) = self.memory.memory().remove_region(addr, size).map_err(refused)?;
        self.publish(memory)?;
        let guest_addr = region.guest_phys_addr;
        self.ranges.retain(|range| range.guest_addr != guest_addr);
        Ok(())
    }

    /// The guest-physical address of an address in the frontend's space.
    pub fn translate(&self, user_addr: u64) -> Result<u64> {
        let found = self.ranges.iter().find_map(|range| {
            let offset = user_addr.checked_sub(range.user_addr).filter(|&offset| offset < range.size)?;
            range.guest_addr.checked_add(offset)
        });
        found.ok_or(Error::InvalidParam)
    }

    fn publish(&self, memory: GuestMemoryMmap) -> Result<()> {
        let guard = self.memory.lock().map_err(|_| Error::BackendInternalError)?;
        guard.replace(memory);
        Ok(())
    }
}

fn map(region: &VhostUserMemoryRegion, file: File) -> Result<GuestRegionMmap> {
    if !holds(&file, region)? {
        return Err(refused(io::Error::other("a memory region behind the end of its file")));
    }
    let guest_addr = GuestAddress(region.guest_phys_addr);
    GuestRegionMmap::new(region.mmap_region(file)?, guest_addr).ok_or(Error::InvalidParam)
}

/// Whether a file is as large as its region wants it: touching what lies behind its end would kill this process. Devices have no end.
fn holds(file: &File, region: &VhostUserMemoryRegion) -> Result<bool> {
    let stat = fstat(file).map_err(|error| refused(io::Error::from(error)))?;
    let end = region.mmap_offset.checked_add(region.memory_size);
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Ok(FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || end.is_some_and(|end| end <= size))
}

fn range(region: &VhostUserMemoryRegion) -> FrontendRange {
    FrontendRange {
        user_addr: region.user_addr,
        size: region.memory_size,
        guest_addr: region.guest_phys_addr,
    }
}

fn refused(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(std::io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_behind_the_end_of_its_file_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(0x3000).unwrap();
        let region = |mmap_offset, memory_size| VhostUserMemoryRegion {
            guest_phys_addr: 0,
            memory_size,
            user_addr: 0,
            mmap_offset,
        };
        let map = |offset, size| map(&region(offset, size), file.try_clone().unwrap());
        assert!(map(0, 0x3000).is_ok());
        assert!(map(0x1000, 0x2000).is_ok());
        for (offset, size) in [(0, 0x4000), (0x1000, 0x3000), (0x3000, 0x1000), (u64::MAX - 0xfff, 0x2000)] {
            assert!(map(offset, size).is_err(), "{offset:#x}, {size:#x}");
        }
    }
}
