//! The unsafe corner of starting processes.

#![expect(unsafe_code, reason = "code between fork and exec, and descriptors named by number")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes `command` close every descriptor above 2 but `channel` in the child, and ask to be killed with the calling thread.
///
/// Libraries that receive descriptors do not all mark them close-on-exec, and guest memory is among them.
pub fn keep_only(command: &mut Command, channel: &OwnedFd) {
    let fd = channel.as_raw_fd();
    let prepare = move || {
        // SAFETY: a system call without pointers, on descriptors of the child only; async-signal-safe.
        let marked =
            unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        if marked != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above; clears close-on-exec of a descriptor that the borrowed channel keeps open in the parent until
        // after the fork.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: `prepare` runs between fork and exec in a child of a process with threads: it makes three system calls, neither
    // allocates nor locks, and creating an error from errno does neither.
    unsafe { command.pre_exec(prepare) };
}

/// Takes over a descriptor this process was started with. To be called once per number, before anything else is opened.
pub fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    if fd <= 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: only asks for a descriptor's flags, whatever the number is.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and nothing in this process owns it: the caller passes each inherited number once and
    // before it opens others.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC)?;
    Ok(owned)
}
