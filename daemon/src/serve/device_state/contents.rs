//! Contents of memory files on their way into a state and out of one. A part that was never written takes no memory of this process, and a part of
//! zeroes takes none of the host.

use rustix::fs::fstat;
use shm::{Guard, Mapping};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes that are compared with zeroes at a time.
const PAGE: usize = 4096;
/// Bytes of a file from which on several threads fill it.
const MAPPED_MIN: u64 = 4 << 20;

/// A memory file of this process that is filled with contents. No process can shrink it.
#[derive(Debug)]
pub(super) struct Target {
    file: OwnedFd,
    /// The file has zeroes only, so none are written.
    is_new: bool,
    /// The bytes of a large file. Several threads fill these at a time, while the kernel lets only one write into a file.
    mapped: Option<Guarded>,
}

/// The mapping of a file from which another process may have taken pages.
#[derive(Debug)]
struct Guarded {
    _guard: Guard,
    mapping: Mapping,
}

impl Target {
    /// Makes a target of a file. `is_new` says that it has zeroes only; otherwise the file is written again and again, and gets all its pages here.
    ///
    /// # Errors
    ///
    /// The file cannot be looked at.
    pub(super) fn new(file: &OwnedFd, is_new: bool) -> io::Result<Self> {
        let file = file.try_clone()?;
        let length = u64::try_from(fstat(&file)?.st_size).map_err(io::Error::other)?;
        let mapped = (length >= MAPPED_MIN).then(|| Guarded::new(&file, length)).flatten();
        let mapped = mapped.filter(|guarded| is_new || guarded.mapping.provide(0, length).is_ok());
        Ok(Self { file, is_new, mapped })
    }

    /// Returns whether it is faster if several threads write into the file.
    pub(super) fn takes_several_writers(&self) -> bool {
        self.mapped.is_some()
    }

    /// Writes bytes into the file, from `offset` on.
    ///
    /// # Errors
    ///
    /// The file ends before, or the system has no memory.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.is_new && are_zero(bytes) {
            return Ok(());
        }
        let has_pages =
            |mapping: &Mapping| !self.is_new || mapping.provide(offset, bytes.len() as u64).is_ok();
        match self.mapped.as_ref().map(|guarded| &guarded.mapping).filter(|mapping| has_pages(mapping)) {
            Some(mapping) => mapping.copy_in(offset, bytes).map_err(io::Error::other),
            // Where a mapping without memory would raise a signal, this says what is wrong.
            None => write(&self.file, offset, bytes),
        }
    }
}

impl Guarded {
    /// Maps a file; returns none if the system does not map it, or if too many mappings are guarded.
    fn new(file: &OwnedFd, length: u64) -> Option<Self> {
        let mapping = Mapping::new(file, length).ok()?;
        let guard = Guard::over(mapping.as_ptr().cast(), mapping.len() as usize)?;
        Some(Self { _guard: guard, mapping })
    }
}

/// Fills a buffer with bytes of a file from `offset` on.
pub(super) fn read(file: impl AsFd, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match rustix::io::pread(&file, &mut *buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                offset += read as u64;
                buffer = &mut buffer[read..];
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes bytes into a file, from `offset` on.
fn write(file: impl AsFd, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(&file, bytes, offset) {
            Ok(written) => {
                offset += written as u64;
                bytes = &bytes[written..];
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns whether all bytes are zero. All bytes of a page are looked at, which several at a time are.
fn are_zero(bytes: &[u8]) -> bool {
    bytes.chunks(PAGE).all(|page| page.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_take_no_memory_in_a_new_file_and_are_written_over_other_bytes() {
        for part in [1 << 20, MAPPED_MIN as usize / 2] {
            let file = shm::create("contents", 3 * part as u64).unwrap();
            let ones = vec![1; part];
            let new = Target::new(&file, true).unwrap();
            assert_eq!(new.takes_several_writers(), 3 * part as u64 >= MAPPED_MIN);
            for (at, bytes) in [&ones, &vec![0; part], &ones].into_iter().enumerate() {
                new.write((at * part) as u64, bytes).unwrap();
            }
            let blocks = fstat(&file).unwrap().st_blocks;
            assert!(u64::try_from(blocks).unwrap() * 512 <= 2 * part as u64, "{blocks} blocks");
            let mut all = vec![7; 3 * part];
            read(&file, 0, &mut all).unwrap();
            assert!(all == [&ones[..], &vec![0; part], &ones].concat());
            Target::new(&file, false).unwrap().write(0, &vec![0; 3 * part]).unwrap();
            read(&file, 0, &mut all).unwrap();
            assert!(are_zero(&all));
        }
    }

    #[test]
    fn one_byte_among_zeroes_is_seen_wherever_it_is() {
        for length in [1, PAGE - 1, PAGE, 2 * PAGE + 1] {
            assert!(are_zero(&vec![0; length]));
            for at in [0, length / 2, length - 1] {
                let mut bytes = vec![0; length];
                bytes[at] = 1;
                assert!(!are_zero(&bytes), "byte {at} of {length}");
            }
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error() {
        for bytes in [4096, MAPPED_MIN] {
            let file = shm::create("contents", bytes).unwrap();
            let target = Target::new(&file, false).unwrap();
            assert_eq!(read(&file, bytes - 4, &mut [0; 8]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            assert!(target.write(bytes - 4, &[1; 8]).is_err() && target.write(bytes, &[1]).is_err());
            assert!(target.write(u64::MAX, &[1; 8]).is_err());
            target.write(bytes - 8, &[1; 8]).unwrap();
            read(&file, bytes - 8, &mut [0; 8]).unwrap();
        }
    }
}
