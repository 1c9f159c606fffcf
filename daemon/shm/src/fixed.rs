//! Files that a process can give away and map safely: no process can shrink them, which would kill a process that touches the lost pages.

use rustix::fs::{FileType, SealFlags, SeekFrom, fcntl_get_seals, fstat, fstatfs, major, seek};
use rustix::io::Errno;
use std::os::fd::AsFd;

/// The kinds of file that have a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedFile {
    /// A memory file sealed against shrinking.
    Memfd,
    /// Memory of a driver (Linux: Documentation/driver-api/dma-buf.rst).
    DmaBuf,
}

/// The reason why a file could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The file could shrink later, and touching the missing pages would kill this process.
    #[error("neither a memory file sealed against shrinking nor a dma-buf")]
    Unsealed,
    /// The file is empty, or smaller than it should be.
    #[error("file of {actual} bytes cannot hold {wanted}")]
    Size {
        /// Bytes to be mapped.
        wanted: u64,
        /// Bytes in the file.
        actual: u64,
    },
    /// The file cannot be mapped at the required address.
    #[error("no place for a mapping at address {address:#x}")]
    Address {
        /// The address.
        address: u64,
    },
    /// The system refused.
    #[error("cannot map file: {0}")]
    System(#[from] Errno),
}

/// The magic number of dma-bufs in Linux's `uapi/linux/magic.h`.
const DMA_BUF_MAGIC: i64 = 0x444d_4142;
/// The magic number of tmpfs, in the same header. Memory files are of this file system, unless they are made of huge pages. A hole in a file of
/// huge pages can be filled only while the system has huge pages left; otherwise a process that touches the hole is killed.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Returns the kind of `file` and its size in bytes.
///
/// # Errors
///
/// [`MapError::Unsealed`] for every other file.
pub fn inspect(file: impl AsFd) -> Result<(FixedFile, u64), MapError> {
    match fstatfs(&file)?.f_type {
        DMA_BUF_MAGIC => Ok((FixedFile::DmaBuf, seek(&file, SeekFrom::End(0))?)),
        TMPFS_MAGIC if fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) => {
            Ok((FixedFile::Memfd, u64::try_from(fstat(&file)?.st_size).unwrap_or(0)))
        }
        _ => Err(MapError::Unsealed),
    }
}

/// Returns the device (`st_rdev`) whose character device node `file` is; none for any other file. Only its driver knows how much of it can be
/// mapped, and how long its contents stay.
pub fn device_node(file: impl AsFd) -> Option<u64> {
    let stat = fstat(file).ok()?;
    FileType::from_raw_mode(stat.st_mode).is_char_device().then_some(stat.st_rdev)
}

/// Returns whether a descriptor may be a driver's memory: a device node, a memory file or a dma-buf.
pub fn may_be_memory(file: impl AsFd) -> bool {
    let is_file = |file| fstatfs(file).is_ok_and(|at| matches!(at.f_type, DMA_BUF_MAGIC | TMPFS_MAGIC));
    device_node(&file).is_some() || is_file(&file)
}

/// Returns whether a device belongs to the driver of the mapped devices, but is not one of them. A process's descriptors of such a device keep the
/// mapped memory alive (*anchors*).
pub fn is_anchor(device: u64, mapped: &[u64]) -> bool {
    !mapped.contains(&device) && mapped.iter().any(|of| major(*of) == major(device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, makedev, memfd_create};
    use std::fs::File;

    #[test]
    fn a_sealed_memory_file_is_of_fixed_size_unless_it_is_of_huge_pages() {
        let sealed = |flags| {
            let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create("sealed", flags)?;
            ftruncate(&file, 2 << 20)?;
            fcntl_add_seals(&file, SealFlags::SHRINK)?;
            rustix::io::Result::Ok(file)
        };
        let plain = sealed(MemfdFlags::empty()).unwrap();
        assert_eq!(inspect(&plain).unwrap(), (FixedFile::Memfd, 2 << 20));
        // A kernel without huge pages makes no such file.
        if let Ok(huge) = sealed(MemfdFlags::HUGETLB) {
            assert!(matches!(inspect(&huge), Err(MapError::Unsealed)));
        }
        assert!(inspect(tempfile::tempfile().unwrap()).is_err());
    }

    #[test]
    fn an_anchor_is_of_the_same_driver() {
        let mapped = [makedev(195, 0), makedev(195, 1)];
        assert!(is_anchor(makedev(195, 255), &mapped));
        assert!(!is_anchor(makedev(195, 1), &mapped));
        assert!(!is_anchor(makedev(1, 5), &mapped));
        assert!(!is_anchor(makedev(195, 255), &[]));
    }

    #[test]
    fn a_device_node_is_told_from_a_file_and_has_no_fixed_size() {
        assert_eq!(device_node(File::open("/dev/zero").unwrap()), Some(makedev(1, 5)));
        assert_eq!(device_node(tempfile::tempfile().unwrap()), None);
        assert!(inspect(File::open("/dev/zero").unwrap()).is_err());
    }
}
