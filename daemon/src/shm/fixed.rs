//! Files that can be given away and mapped without fear: nobody can make them smaller, which would kill whoever touches what is gone.

use super::MapError;
use rustix::fs::{FileType, SealFlags, SeekFrom, fcntl_get_seals, fstat, fstatfs, major, seek};
use std::os::fd::AsFd;

/// What a file of fixed size is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedFile {
    /// A memory file sealed against shrinking.
    Memfd,
    /// Memory of a driver (Linux: Documentation/driver-api/dma-buf.rst).
    DmaBuf,
}

/// `DMA_BUF_MAGIC` of Linux's `uapi/linux/magic.h`.
const DMA_BUF_MAGIC: i64 = 0x444d_4142;

/// Says what `file` is and how many bytes it has.
///
/// # Errors
///
/// [`MapError::Unsealed`] for every other file.
pub fn inspect(file: impl AsFd) -> Result<(FixedFile, u64), MapError> {
    if fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return Ok((FixedFile::Memfd, u64::try_from(fstat(&file)?.st_size).unwrap_or(0)));
    }
    if fstatfs(&file)?.f_type == DMA_BUF_MAGIC {
        return Ok((FixedFile::DmaBuf, seek(&file, SeekFrom::End(0))?));
    }
    Err(MapError::Unsealed)
}

/// The device (`st_rdev`) whose character device node `file` is; none if it is anything else. How much of it can be mapped only its driver
/// knows, and for how long what is there is the same.
pub fn device_node(file: impl AsFd) -> Option<u64> {
    let stat = fstat(file).ok()?;
    FileType::from_raw_mode(stat.st_mode).is_char_device().then_some(stat.st_rdev)
}

/// Whether a device is of the same driver as those that memory is mapped out of, and none of them. A process's descriptors of it keep that
/// memory alive (*anchors*).
pub fn is_anchor(device: u64, mapped: &[u64]) -> bool {
    !mapped.contains(&device) && mapped.iter().any(|of| major(*of) == major(device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::makedev;
    use std::fs::File;

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
