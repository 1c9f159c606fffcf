//! Contents of memory files on their way into a state and out of one. Files are read and written, not mapped: a part that was never written takes no
//! memory of this process, and a part of zeroes takes none of the host.

use std::io;
use std::os::fd::AsFd;

/// Bytes that are compared with zeroes at a time.
const PAGE: usize = 4096;

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

/// Writes bytes into a file, from `offset` on. Zeroes are not written into a file that `is_new`.
pub(super) fn write(file: impl AsFd, (mut offset, is_new): (u64, bool), mut bytes: &[u8]) -> io::Result<()> {
    if is_new && are_zero(bytes) {
        return Ok(());
    }
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
        const PART: usize = 1 << 20;
        let file = shm::create("contents", 3 * PART as u64).unwrap();
        let ones = vec![1; PART];
        for (part, bytes) in [&ones, &vec![0; PART], &ones].into_iter().enumerate() {
            write(&file, ((part * PART) as u64, true), bytes).unwrap();
        }
        let blocks = rustix::fs::fstat(&file).unwrap().st_blocks;
        assert!(u64::try_from(blocks).unwrap() * 512 <= 2 * PART as u64, "{blocks} blocks");
        let mut all = vec![7; 3 * PART];
        read(&file, 0, &mut all).unwrap();
        assert!(all == [&ones[..], &vec![0; PART], &ones].concat());
        write(&file, (0, false), &vec![0; 3 * PART]).unwrap();
        read(&file, 0, &mut all).unwrap();
        assert!(are_zero(&all));
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
        let file = shm::create("contents", 4096).unwrap();
        assert_eq!(read(&file, 4092, &mut [0; 8]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(write(&file, (4092, false), &[1; 8]).is_err());
        read(&file, 4088, &mut [0; 8]).unwrap();
    }
}
