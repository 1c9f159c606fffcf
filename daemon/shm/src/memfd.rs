//! Memory files that can be given away: fixed in size, zeroed, never executable.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io;
use std::os::fd::OwnedFd;

/// Makes a zeroed memory file of `size` bytes that no process can shrink, grow or unseal any more.
///
/// `name` is only for `/proc/*/maps`. Fails when the system is out of descriptors, or `size` exceeds the limit of a file.
pub fn create(name: &str, size: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag that makes the file non-executable for good.
    let fd = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| memfd_create(name, flags))?;
    ftruncate(&fd, size)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}
