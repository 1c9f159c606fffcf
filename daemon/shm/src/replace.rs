//! The replacement of an open file under its descriptor number, which a library keeps to itself.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// Puts a file in the place of the open file with this number, whichever value owns the number. A user of that number goes on with the new file.
///
/// # Errors
///
/// The number is not in use, or the system refuses.
pub fn put_in_place_of(number: RawFd, file: impl AsFd) -> io::Result<()> {
    // SAFETY: a system call without pointers. The number stays open and keeps its owner; only the file behind it changes. For a number that is
    // not open, F_GETFD fails first.
    let put = || unsafe { libc::dup3(file.as_fd().as_raw_fd(), number, libc::O_CLOEXEC) };
    // SAFETY: a system call without pointers.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 || put() < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_written_to_the_number_goes_to_the_new_file() {
        let (mut kept, _) = UnixStream::pair().unwrap();
        let (new, mut end) = UnixStream::pair().unwrap();
        put_in_place_of(kept.as_raw_fd(), &new).unwrap();
        drop(new);
        kept.write_all(b"x").unwrap();
        end.read_exact(&mut [0; 1]).unwrap();
        assert!(put_in_place_of(-1, &end).is_err());
    }
}
