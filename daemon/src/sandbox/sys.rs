//! The unsafe code for starting and confining processes: system calls that no library offers safely. This file knows no policy.

#![expect(unsafe_code, reason = "fork, exec and filters of system calls, and descriptors named by number")]

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::UnshareFlags;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Takes over the descriptor that is this process's standard input, which is empty from then on, and closes all others above 2. Libraries of the
/// process that started this one do not mark all of their descriptors close-on-exec, and guest memory is among those. Call this before anything is
/// opened.
pub fn only_standard_input() -> io::Result<OwnedFd> {
    // SAFETY: a system call without pointers; nothing in this process owns a descriptor above 2 yet, as the caller promises.
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let taken = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(taken)
}

/// Takes over a descriptor with which this process was started. Call this once per number, before anything else is opened.
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

/// Calls `act` while SIGHUP is ignored. A program that `act` executes starts with SIGHUP ignored, and gets the signal as soon as it handles it.
pub fn without_hangups<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero bytes are a valid `sigaction`: no flags, an empty mask, the usual action.
    let (mut ignored, mut before) = unsafe { std::mem::zeroed::<(libc::sigaction, libc::sigaction)>() };
    ignored.sa_sigaction = libc::SIG_IGN;
    // SAFETY: both structures live until the call returns, and the new action is no function.
    unsafe { libc::sigaction(libc::SIGHUP, &raw const ignored, &raw mut before) };
    let result = act();
    // SAFETY: the structure lives until the call returns, and its action is the one that was there.
    unsafe { libc::sigaction(libc::SIGHUP, &raw const before, ptr::null_mut()) };
    result
}

/// Makes a write into a pipe without a reader an error that does not end the process. The standard library does this at the start of a program,
/// and undoes it when the program tries to execute another.
pub fn ignore_broken_pipes() {
    // SAFETY: the action is no function.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// The two sides of a [`fork`].
#[derive(Debug)]
pub(super) enum Fork {
    /// The calling process, with the child's number.
    Parent(Pid),
    /// The child: a copy of the caller.
    Child,
}

/// Copies this process into a child that is in new namespaces of these kinds.
///
/// # Errors
///
/// The process has other threads, whose locks would stay locked in the child for ever, or the system refuses.
pub(super) fn fork(namespaces: UnshareFlags) -> io::Result<Fork> {
    if std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count) != 1 {
        return Err(io::Error::other("a process with several threads cannot fork"));
    }
    let flags = u64::from(namespaces.bits()) | libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM and with no stack this is fork: the child continues here on its own copy of everything. The process
    // has this thread only, so no lock is held by a thread that the child lacks.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) };
    match pid {
        0 => Ok(Fork::Child),
        pid if pid > 0 => Ok(Fork::Parent(Pid::from_raw(pid as i32).ok_or(Errno::INVAL)?)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Replaces this process's standard output and error.
pub(super) fn print_to(output: BorrowedFd<'_>) -> io::Result<()> {
    rustix::stdio::dup2_stdout(output)?;
    Ok(rustix::stdio::dup2_stderr(output)?)
}

/// Replaces this process by the program in a file; returns only if that fails. Closes every descriptor above 2 but `keep`.
pub(super) fn exec(
    program: BorrowedFd<'_>,
    arguments: &[CString],
    environment: &[CString],
    keep: RawFd,
) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: a system call without pointers.
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) } != 0 {
        return io::Error::last_os_error();
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(keep, libc::F_SETFD, 0) } != 0 {
        return io::Error::last_os_error();
    }
    // SAFETY: the empty path and both arrays end with a zero and live, with the strings they point to, until the call returns.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Closes every descriptor above 2 but this one, even those that values own. Only a process that does not return to its callers may call this.
pub(super) fn close_all_but(keep: BorrowedFd<'_>) {
    let keep = keep.as_raw_fd() as u32;
    for (first, last) in [(3, keep.saturating_sub(1)), (keep.saturating_add(1), u32::MAX)] {
        if first <= last {
            // SAFETY: a system call without pointers. The owners of what is closed live in callers that this process does not return
            // to, as the caller promises; none is used or dropped.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// Returns the process that connected or made the other end of a Unix socket, if the system can tell (Linux 6.5).
pub fn peer_process(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let (mut pidfd, mut size): (RawFd, libc::socklen_t) = (-1, size_of::<RawFd>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `size` bytes, which is as much as there is, and its length; both live until the call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut size,
        )
    };
    // SAFETY: with success it is a descriptor that the kernel has just made for the caller.
    (result == 0 && pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// `SO_PEERPIDFD` of Linux's `asm-generic/socket.h`.
const SO_PEERPIDFD: libc::c_int = 77;

/// Ends this process without running the exit handlers of libraries.
pub fn end_at_once(code: i32) -> ! {
    // SAFETY: ends the process; nothing is run or touched.
    unsafe { libc::_exit(code) }
}

/// Moves this process into new namespaces.
pub(super) fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: the only kind that shared state could depend on is CLONE_FILES, which no caller passes.
    Ok(unsafe { rustix::thread::unshare_unsafe(namespaces) }?)
}

/// Sets attributes (`MOUNT_ATTR_*`) of a mount and all below it.
pub(super) fn set_mount_attributes(mount: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    // SAFETY: path and struct live until the call returns; the size is the struct's.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lays a filter of system calls on the calling thread, and on the threads and programs that it starts from now on. With
/// `listen` the calls that the filter hands to a listener can be received from the returned descriptor.
pub(super) fn set_filter(program: &[libc::sock_filter], listen: bool) -> io::Result<Option<OwnedFd>> {
    let len = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let flags = if listen { libc::SECCOMP_FILTER_FLAG_NEW_LISTENER } else { 0 };
    // SAFETY: the kernel copies `len` instructions from the slice before the call returns, and checks them.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    match result {
        fd if fd > 0 && listen => {
            // SAFETY: with this flag the result is a descriptor that the kernel has just made for the caller.
            Ok(Some(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
        }
        0 => Ok(None),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A system call that a filter handed to its listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notified {
    id: u64,
    /// The number of the call on this machine.
    pub number: i32,
    /// The arguments of the call.
    pub arguments: [u64; 6],
}

/// Waits for the next call at a listener ([`set_filter`]).
pub(super) fn next_notified(listener: &OwnedFd) -> io::Result<Notified> {
    // SAFETY: a struct of integers, for which zeros are values.
    let mut request: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the request is zeroed, as the kernel demands, and of the size that is encoded in the command.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_RECV, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Notified { id: request.id, number: request.data.nr, arguments: request.data.args })
}

/// Lets a call that was received go on as if there were no filter.
pub(super) fn let_continue(listener: &OwnedFd, notified: &Notified) -> io::Result<()> {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let mut answer = libc::seccomp_notif_resp { id: notified.id, val: 0, error: 0, flags };
    // SAFETY: as above.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `_IOWR('!', 0, struct seccomp_notif)` and `_IOWR('!', 1, struct seccomp_notif_resp)` of `linux/seccomp.h`.
const SECCOMP_IOCTL_NOTIF_RECV: libc::c_ulong = 0xc050_2100;
const SECCOMP_IOCTL_NOTIF_SEND: libc::c_ulong = 0xc018_2101;

#[cfg(test)]
mod tests {
    use crate::sandbox::start_device_process;
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// The number of copies of this process that its code, or the standard library, has made through the C library.
    static COPIES: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count() {
        COPIES.fetch_add(1, SeqCst);
    }

    /// A thread that changes the mappings of a process waits while the process is copied: up to 0.8 s under attack.
    #[test]
    fn starting_a_device_process_copies_no_memory() {
        // SAFETY: the handler adds to a number, and lives as long as the process.
        assert_eq!(unsafe { libc::pthread_atfork(Some(count), None, None) }, 0);
        let (_ours, theirs) = UnixStream::pair().unwrap();
        // The test program refuses the option and ends.
        start_device_process("vm", theirs.into()).unwrap().wait().unwrap();
        assert_eq!(COPIES.load(SeqCst), 0);
        let mut copied = Command::new("/bin/true");
        // SAFETY: the closure does nothing.
        unsafe { copied.pre_exec(|| Ok(())) };
        copied.status().unwrap();
        assert_eq!(COPIES.load(SeqCst), 1, "copies are not counted");
    }
}
