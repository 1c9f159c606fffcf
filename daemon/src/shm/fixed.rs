//! Files that can be given away and mapped without fear: nobody can make them smaller, which would kill whoever touches what is gone.

use super::MapError;
use rustix::fs::{SealFlags, SeekFrom, fcntl_get_seals, fstat, fstatfs, seek};
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
