//! Guest memory as the frontend announces it.

use std::fs::File;
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
    let guest_addr = GuestAddress(region.guest_phys_addr);
    GuestRegionMmap::new(region.mmap_region(file)?, guest_addr).ok_or(Error::InvalidParam)
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
