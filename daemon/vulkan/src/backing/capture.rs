//! Finds the descriptor that a driver maps when it allocates memory that the processor can reach.
//!
//! A driver that exports nothing still maps such memory for its own process, out of a device node, and the same descriptor can be mapped
//! by another process. The executable's own `mmap` takes precedence over the C library's and calls [`map`], which does the same. While the
//! calling thread [watches](watching), `map` also keeps a copy of the descriptor. The system calls of this file leave `errno` alone, except
//! for the mapping's own.

#![allow(unsafe_code, reason = "stands before the C library's mmap")]

use ash::vk::{self, Handle as _};
use rustix::fs::{FileType, fstat};
use rustix::io::fcntl_dupfd_cloexec;
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};

thread_local! {
    /// Bytes that a mapping has to have; 0 while no thread watches. The cell has no destructor, so that it can be read at any time: threads
    /// map memory before they run and when they end.
    static WANTED: Cell<usize> = const { Cell::new(0) };
    /// The descriptors that were found. They are used only while this thread watches.
    static FOUND: RefCell<Vec<OwnedFd>> = const { RefCell::new(Vec::new()) };
}

/// The most descriptors that are kept: any greater number of mappings is treated like this number.
const FOUND_MAX: usize = 2;

/// Runs `call`, and returns its result and a copy of the descriptor of the character device that the driver maps meanwhile on this thread:
/// shared, for writing, from its start, `size` bytes, as NVIDIA's driver maps memory only as a whole. The copy is none if the driver maps
/// no such device, or several: nothing then tells which one is the memory.
pub(crate) fn watching<R>(size: u64, call: impl FnOnce() -> R) -> (R, Option<OwnedFd>) {
    // No mapping can be larger than the address space.
    WANTED.set(usize::try_from(size).unwrap_or(usize::MAX).max(1));
    let result = call();
    WANTED.set(0);
    let mut found = FOUND.take();
    let only = if found.len() == 1 { found.pop() } else { None };
    (result, only)
}

/// Makes the driver map memory, which stays mapped until it is freed, and returns the descriptor.
///
/// # Safety
///
/// `raw` is unmapped memory of this live device, of `size` bytes and a host-visible type, which no other code knows.
pub(crate) unsafe fn map_of(device: &ash::Device, raw: u64, size: u64) -> Option<OwnedFd> {
    let (memory, flags) = (vk::DeviceMemory::from_raw(raw), vk::MemoryMapFlags::empty());
    // SAFETY: the caller's promise.
    let (mapped, caught) = watching(size, || unsafe { device.map_memory(memory, 0, vk::WHOLE_SIZE, flags) });
    mapped.ok().and(caught)
}

/// `mmap` (POSIX.1-2024), with `errno`.
///
/// # Safety
///
/// The caller keeps the contract of the C library's function.
pub unsafe fn map(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise. The kernel takes the offset in bytes on the machines this runs on.
    let result = unsafe { libc::syscall(libc::SYS_mmap, address, len, protection, flags, fd, offset) };
    let wanted = WANTED.get();
    if wanted != 0 && result != -1 && fd >= 0 && len == wanted && offset == 0 {
        let shared = matches!(flags & MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
        if shared && protection & libc::PROT_WRITE != 0 {
            // SAFETY: it was mapped just now, and is open until the caller has its answer.
            keep(unsafe { BorrowedFd::borrow_raw(fd) });
        }
    }
    std::ptr::with_exposed_provenance_mut(result as usize)
}

/// The bits of the flags that say how a mapping is shared (Linux: `uapi/linux/mman.h`).
const MAP_TYPE: c_int = 0xf;

fn keep(fd: BorrowedFd<'_>) {
    let device = fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_char_device());
    if !device {
        return;
    }
    FOUND.with_borrow_mut(|found| {
        if found.len() < FOUND_MAX
            && let Ok(copy) = fcntl_dupfd_cloexec(fd, 3)
        {
            found.push(copy);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd;
    use std::os::linux::fs::MetadataExt;

    const SHARED: c_int = libc::MAP_SHARED;
    const BOTH: c_int = libc::PROT_READ | libc::PROT_WRITE;
    const SIZE: usize = 1 << 16;

    /// Maps as a driver does: opens a file for the mapping, and closes it again.
    fn mapped(path: &str, len: usize, protection: c_int, flags: c_int, offset: i64) -> bool {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe { map(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), offset) };
        let done = at != libc::MAP_FAILED;
        if done {
            // SAFETY: mapped above, and nothing refers to it.
            unsafe { libc::munmap(at, len) };
        }
        done
    }

    fn found(call: impl FnOnce() -> bool) -> Option<OwnedFd> {
        let (mapped, found) = watching(SIZE as u64, call);
        assert!(mapped);
        found
    }

    #[test]
    fn the_descriptor_of_a_mapped_device_is_kept_while_somebody_watches() {
        let zero = found(|| mapped("/dev/zero", SIZE, BOTH, SHARED, 0)).expect("a copy");
        let device = File::from(zero).metadata().unwrap().st_rdev();
        assert_eq!(device, rustix::fs::makedev(1, 5));
        // An earlier mapping belongs to no memory object.
        assert!(mapped("/dev/zero", SIZE, BOTH, SHARED, 0));
        assert!(found(|| true).is_none());
    }

    #[test]
    fn what_cannot_be_the_memory_is_not_taken_for_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(2 * SIZE as u64).unwrap();
        let path = file.path().to_str().unwrap();
        for (path, len, protection, flags, offset) in [
            (path, SIZE, BOTH, SHARED, 0),
            ("/dev/zero", SIZE - 4096, BOTH, SHARED, 0),
            ("/dev/zero", 2 * SIZE, BOTH, SHARED, 0),
            ("/dev/zero", SIZE, BOTH, libc::MAP_PRIVATE, 0),
            ("/dev/zero", SIZE, libc::PROT_READ, SHARED, 0),
            ("/dev/zero", SIZE, BOTH, SHARED, 4096),
        ] {
            let what = (path, len, protection, flags, offset);
            assert!(found(|| mapped(path, len, protection, flags, offset)).is_none(), "{what:?}");
        }
        // Nothing tells which of several mappings is the memory.
        let map = || mapped("/dev/zero", SIZE, BOTH, SHARED, 0);
        assert!(found(|| map() && map()).is_none());
        assert!(found(|| map() && map() && map()).is_none());
        assert!(found(map).is_some());
    }

    #[test]
    fn only_the_thread_that_watches_is_watched() {
        let other = || std::thread::spawn(|| mapped("/dev/zero", SIZE, BOTH, SHARED, 0)).join().unwrap();
        assert!(found(other).is_none());
    }

    #[test]
    fn a_mapping_that_fails_says_why_as_the_library_does() {
        let ((at, error), found) = watching(1, || {
            // SAFETY: no bytes, no descriptor: it fails.
            let at = unsafe { map(std::ptr::null_mut(), 0, BOTH, SHARED, -1, 0) };
            (at, std::io::Error::last_os_error().raw_os_error())
        });
        assert_eq!((at, error), (libc::MAP_FAILED, Some(libc::EBADF)));
        assert!(found.is_none());
    }
}
