//! Copies between memory files and a state. Files are read and written, not mapped: a part that was never written takes no memory of this process,
//! and a part of zeroes takes none of the host.

use super::format::StateError;
use std::io;
use std::os::fd::AsFd;

/// Bytes that are copied at a time.
const PART: usize = 1 << 20;

/// Passes `bytes` bytes of a file, from `offset` on, to `write`.
pub(super) fn out(
    file: impl AsFd,
    offset: u64,
    bytes: u64,
    mut write: impl FnMut(&[u8]) -> Result<(), StateError>,
) -> Result<(), StateError> {
    let (mut buffer, mut done) = (vec![0; part(bytes)], 0);
    while done < bytes {
        let wanted = part(bytes - done);
        match rustix::io::pread(&file, &mut buffer[..wanted], offset + done) {
            Ok(0) => return Err(StateError::Memory(io::ErrorKind::UnexpectedEof.into())),
            Ok(read) => {
                write(&buffer[..read])?;
                done += read as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(StateError::Memory(error.into())),
        }
    }
    Ok(())
}

/// Writes `bytes` bytes, with which `read` fills buffers, into a file, from `offset` on. Zeroes are not written into a file that `is_new`.
pub(super) fn into(
    file: impl AsFd,
    (offset, is_new): (u64, bool),
    bytes: u64,
    mut read: impl FnMut(&mut [u8]) -> Result<(), StateError>,
) -> Result<(), StateError> {
    let (mut buffer, mut done) = (vec![0; part(bytes)], 0);
    while done < bytes {
        let some = &mut buffer[..part(bytes - done)];
        read(some)?;
        if !is_new || some.iter().any(|byte| *byte != 0) {
            write_all(&file, offset + done, some)?;
        }
        done += some.len() as u64;
    }
    Ok(())
}

fn write_all(file: impl AsFd, mut at: u64, mut bytes: &[u8]) -> Result<(), StateError> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(&file, bytes, at) {
            Ok(written) => {
                at += written as u64;
                bytes = &bytes[written..];
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(StateError::Memory(error.into())),
        }
    }
    Ok(())
}

/// Returns how many of so many bytes are copied next.
fn part(left: u64) -> usize {
    left.min(PART as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    const SIZE: u64 = 3 * PART as u64 - 4096;

    /// Pages with a number each, and a whole part of zeroes in the middle.
    fn contents() -> Vec<u8> {
        let mut all: Vec<u8> = (0..SIZE).map(|at| (at / 4096 % 255) as u8 + 1).collect();
        all[PART..2 * PART].fill(0);
        all
    }

    fn fill(file: &OwnedFd, is_new: bool, contents: &[u8]) {
        let mut left = contents;
        into(file, (0, is_new), SIZE, |some| {
            let (next, rest) = left.split_at(some.len());
            some.copy_from_slice(next);
            left = rest;
            Ok(())
        })
        .unwrap();
        assert!(left.is_empty());
    }

    fn read(file: &OwnedFd) -> Vec<u8> {
        let mut all = Vec::new();
        out(file, 0, SIZE, |some| {
            all.extend(some);
            Ok(())
        })
        .unwrap();
        all
    }

    #[test]
    fn zeroes_take_no_memory_in_a_new_file_and_are_written_over_other_bytes() {
        let (file, contents) = (shm::create("copies", SIZE).unwrap(), contents());
        fill(&file, true, &contents);
        assert!(read(&file) == contents);
        let blocks = rustix::fs::fstat(&file).unwrap().st_blocks;
        assert!(u64::try_from(blocks).unwrap() * 512 <= SIZE - PART as u64, "{blocks} blocks");
        fill(&file, false, &vec![0; SIZE as usize]);
        assert!(read(&file).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error() {
        let file = shm::create("copies", 4096).unwrap();
        let copied = out(&file, 0, 8192, |_| Ok(()));
        assert!(matches!(copied, Err(StateError::Memory(_))));
        assert!(matches!(into(&file, (4096, false), 4096, |_| Ok(())), Err(StateError::Memory(_))));
    }
}
