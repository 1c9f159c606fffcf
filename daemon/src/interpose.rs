//! The `mmap` and the `ioctl` that every library in this process calls.
//!
//! The executable's symbols go before the C library's, so a worker learns of its driver's mappings and channel groups. In every other process these
//! functions act as the C library's. `build.rs` has them exported.

#![expect(unsafe_code, reason = "functions that the C library has under the same names")]

use std::ffi::{c_int, c_ulong, c_void};

/// `mmap` (POSIX.1-2024).
///
/// # Safety
///
/// That of the C library's function.
// SAFETY: the name is the C library's, and the function has its type and does what it does.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { vulkan::map(address, len, protection, flags, fd, offset) }
}

/// `mmap64`, which is the same where offsets have 64 bits.
///
/// # Safety
///
/// That of the C library's function.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { vulkan::map(address, len, protection, flags, fd, offset) }
}

/// `ioctl` (Linux). The C library's has a variable number of arguments; the kernel has one at most, which is passed in the same way.
///
/// # Safety
///
/// That of the C library's function.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { vulkan::ioctl(fd, request, argument) }
}
