//! Guest memory as the frontend announces it.
//!
//! Frontends also announce the memory that they have mapped into the window. Memory that was mapped out of a driver's device is left out: since it
//! may be gone at any moment, a guest that names it for a queue or a buffer names no memory here.

use super::passed_files::PassedFiles;
use super::regions::{Region, Regions, WrongRegion};
use rustix::fs::{FileType, fstat};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result};
use vm_memory::{
    GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend, GuestMemoryRegion,
    GuestRegionMmap,
};

/// The memory that both threads see.
pub(super) type Memory = GuestMemoryAtomic<Regions>;

/// The address of a region in the frontend's address space, in which the frontend names the virtqueues.
#[derive(Clone, Copy, Debug)]
struct FrontendRange {
    user_addr: u64,
    size: u64,
    guest_addr: u64,
    /// The region is not mapped here.
    hidden: bool,
}

/// The memory table, owned by the message thread.
#[derive(Debug)]
pub(super) struct MemoryTable {
    memory: Memory,
    ranges: Vec<FrontendRange>,
    /// Device nodes (`st_rdev`) whose memory is not mapped here.
    hidden: Vec<u64>,
}

/// A region, written down for another process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PassedRegion {
    guest_addr: u64,
    size: u64,
    user_addr: u64,
    /// The offset in the region's file; none if the region is not mapped here, and its file is not sent.
    offset: Option<u64>,
}

impl MemoryTable {
    /// Writes the regions down, and copies the files of those that are mapped here.
    pub(super) fn pass_on(&self) -> io::Result<(Vec<PassedRegion>, Vec<OwnedFd>)> {
        let (mut regions, mut files) = (Vec::new(), Vec::new());
        let memory = self.memory.memory();
        for FrontendRange { user_addr, size, guest_addr, hidden } in self.ranges.iter().copied() {
            let region = memory.find_region(GuestAddress(guest_addr)).filter(|_| !hidden);
            let file = region.and_then(|region| region.file_offset());
            regions.push(PassedRegion { guest_addr, size, user_addr, offset: file.map(|file| file.start()) });
            files.extend(file.map(|file| file.file().try_clone()).transpose()?.map(OwnedFd::from));
        }
        Ok((regions, files))
    }

    /// Adds a region that another process has written down.
    pub(super) fn resume(&mut self, passed: PassedRegion, files: &mut PassedFiles) -> io::Result<Result<()>> {
        let PassedRegion { guest_addr: guest_phys_addr, size: memory_size, user_addr, offset } = passed;
        let region =
            |mmap_offset| VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset };
        let Some(offset) = offset else {
            self.ranges.push(range(&region(0), true));
            return Ok(Ok(()));
        };
        Ok(self.add(&region(offset), files.take()?.into()))
    }

    /// Makes an empty table that publishes to `memory` all regions except those of the device nodes `hidden`.
    pub(super) fn new(memory: Memory, hidden: Vec<u64>) -> Self {
        Self { memory, ranges: Vec::new(), hidden }
    }

    /// Returns the number of announced regions.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns guest address and bytes of each announced region.
    pub(super) fn regions(&self) -> Vec<(u64, u64)> {
        self.ranges.iter().map(|range| (range.guest_addr, range.size)).collect()
    }

    /// Replaces all regions.
    pub(super) fn set(&mut self, regions: &[VhostUserMemoryRegion], files: Vec<File>) -> Result<()> {
        let (mut memory, mut ranges) = (Regions::default(), Vec::new());
        for (region, file) in regions.iter().zip(files) {
            let hidden = self.hides(&file);
            ranges.push(range(region, hidden));
            if !hidden {
                memory = memory.with(Arc::new(map(region, file)?)).map_err(wrong)?;
            }
        }
        self.publish(memory)?;
        self.ranges = ranges;
        Ok(())
    }

    /// Adds a region.
    pub(super) fn add(&mut self, region: &VhostUserMemoryRegion, file: File) -> Result<()> {
        let hidden = self.hides(&file);
        if !hidden {
            let region = Arc::new(map(region, file)?);
            self.publish(self.memory.memory().with(region).map_err(wrong)?)?;
        }
        self.ranges.push(range(region, hidden));
        Ok(())
    }

    /// Removes a region.
    pub(super) fn remove(&mut self, region: &VhostUserMemoryRegion) -> Result<()> {
        let guest_addr = region.guest_phys_addr;
        let hidden = |range: &FrontendRange| range.hidden && range.guest_addr == guest_addr;
        if !self.ranges.iter().any(hidden) {
            let (addr, size) = (GuestAddress(guest_addr), region.memory_size);
            let memory = self.memory.memory().without(addr, size).map_err(wrong)?;
            self.publish(memory)?;
        }
        self.ranges.retain(|range| range.guest_addr != guest_addr);
        Ok(())
    }

    /// Returns the guest-physical address of an address in the frontend's space.
    pub(super) fn translate(&self, user_addr: u64) -> Result<u64> {
        let found = self.ranges.iter().find_map(|range| {
            let offset = user_addr.checked_sub(range.user_addr).filter(|&offset| offset < range.size)?;
            range.guest_addr.checked_add(offset)
        });
        found.ok_or(Error::InvalidParam)
    }

    fn hides(&self, file: &File) -> bool {
        fstat(file).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode).is_char_device() && self.hidden.contains(&stat.st_rdev)
        })
    }

    fn publish(&self, memory: Regions) -> Result<()> {
        let guard = self.memory.lock().map_err(|_| Error::BackendInternalError)?;
        guard.replace(memory);
        Ok(())
    }
}

fn map(region: &VhostUserMemoryRegion, file: File) -> Result<Region> {
    if !holds(&file, region)? {
        return Err(Error::InvalidOperation("a memory region behind the end of its file"));
    }
    let guest_addr = GuestAddress(region.guest_phys_addr);
    let mapped = GuestRegionMmap::new(region.mmap_region(file)?, guest_addr).ok_or(Error::InvalidParam)?;
    Region::new(mapped).ok_or(Error::InvalidOperation("more memory regions than can be mapped"))
}

/// Returns whether a file is large enough for its region. The file may shrink later, which [`shm::Guard`] handles. Devices have no end.
fn holds(file: &File, region: &VhostUserMemoryRegion) -> Result<bool> {
    let stat = fstat(file).map_err(|error| Error::ReqHandlerError(error.into()))?;
    let end = region.mmap_offset.checked_add(region.memory_size);
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Ok(FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || end.is_some_and(|end| end <= size))
}

fn range(region: &VhostUserMemoryRegion, hidden: bool) -> FrontendRange {
    FrontendRange {
        user_addr: region.user_addr,
        size: region.memory_size,
        guest_addr: region.guest_phys_addr,
        hidden,
    }
}

/// Makes the error for a wrong change of the table, which is the frontend's fault. [`Error::ReqHandlerError`] is for refusals of the system.
fn wrong(region: WrongRegion) -> Error {
    Error::InvalidOperation(region.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::SessionError;

    #[test]
    fn memory_of_a_driver_is_announced_and_not_mapped() {
        let memory = Memory::new(Regions::default());
        let mut table = MemoryTable::new(memory.clone(), vec![rustix::fs::makedev(1, 5)]);
        let at = |guest_phys_addr, user_addr| VhostUserMemoryRegion {
            guest_phys_addr,
            memory_size: 0x1000,
            user_addr,
            mmap_offset: 0,
        };
        let plain = || {
            let file = tempfile::tempfile().unwrap();
            file.set_len(0x1000).unwrap();
            file
        };
        let device = || File::options().read(true).write(true).open("/dev/zero").unwrap();
        let mapped = || [0, 0x1000, 0x2000].map(|at| memory.memory().find_region(GuestAddress(at)).is_some());
        table.set(&[at(0, 0x7000), at(0x1000, 0x8000)], vec![plain(), device()]).unwrap();
        assert_eq!((table.len(), mapped()), (2, [true, false, false]));
        table.add(&at(0x2000, 0x9000), device()).unwrap();
        assert_eq!((table.len(), mapped()), (3, [true, false, false]));
        let (passed, files) = table.pass_on().unwrap();
        assert_eq!(files.len(), 1);
        let goes_on = Memory::new(Regions::default());
        let mut other = MemoryTable::new(goes_on.clone(), Vec::new());
        let mut files = PassedFiles::from(files);
        passed.into_iter().for_each(|region| other.resume(region, &mut files).unwrap().unwrap());
        assert_eq!(other.regions(), table.regions());
        let is_mapped = |at| goes_on.memory().find_region(GuestAddress(at)).is_some();
        assert!(is_mapped(0) && !is_mapped(0x1000) && !is_mapped(0x2000));
        assert_eq!(other.translate(0x8001).unwrap(), 0x1001);
        for (left, guest_addr) in [(2, 0x1000), (1, 0x2000)] {
            table.remove(&at(guest_addr, 0)).unwrap();
            assert_eq!((table.len(), mapped()), (left, [true, false, false]));
        }
        assert!(matches!(table.remove(&at(0x2000, 0)), Err(Error::InvalidOperation(_))));
        table.remove(&at(0, 0)).unwrap();
        assert_eq!((table.len(), mapped()), (0, [false; 3]));
    }

    #[test]
    fn what_the_system_refuses_passes_and_a_region_that_cannot_be_does_not() {
        let memory = Memory::new(Regions::default());
        let mut table = MemoryTable::new(memory, Vec::new());
        let region = VhostUserMemoryRegion { memory_size: 0x1000, ..VhostUserMemoryRegion::default() };
        let file = |bytes| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(bytes).unwrap();
            file
        };
        let is_of_system = |added: Result<()>| SessionError::from(added.unwrap_err()).is_of_system();
        assert!(is_of_system(table.add(&region, File::open("/dev/null").unwrap())), "it cannot be mapped");
        assert!(!is_of_system(table.add(&region, file(0))));
        table.add(&region, file(0x1000)).unwrap();
        assert!(!is_of_system(table.add(&region, file(0x1000))), "they overlap");
    }

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
            let refused = map(offset, size);
            assert!(matches!(refused, Err(Error::InvalidOperation(_))), "{offset:#x}, {size:#x}");
        }
    }
}
