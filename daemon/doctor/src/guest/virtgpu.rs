//! The questions that the virtio-gpu kernel driver answers (kernel: `include/uapi/drm/virtgpu_drm.h`).

#![allow(unsafe_code, reason = "the kernel writes where a struct points")]

use rustix::io::Result;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// A parameter, which mostly says whether device and kernel have a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameter {
    /// The device has 3D commands.
    Features3d = 1,
    /// The kernel returns capability sets as they are.
    CapsetQueryFix = 2,
    /// The device has blob resources.
    ResourceBlob = 3,
    /// The device has memory that the guest can map.
    HostVisible = 4,
    /// The device has contexts for a capability set.
    ContextInit = 6,
    /// A bit for each capability set that the device has.
    SupportedCapsets = 7,
}

/// `struct drm_virtgpu_getparam`.
#[repr(C)]
struct GetParam {
    param: u64,
    value: u64,
}

/// `struct drm_virtgpu_get_caps`.
#[repr(C)]
struct GetCaps {
    set: u32,
    version: u32,
    address: u64,
    size: u32,
    pad: u32,
}

const GETPARAM: Opcode = opcode::read_write::<GetParam>(b'd', 0x43);
const GET_CAPS: Opcode = opcode::read_write::<GetCaps>(b'd', 0x49);

/// Returns the value of a parameter of the device behind an open render node.
///
/// # Errors
///
/// The node is not one of virtio-gpu, or its kernel driver does not know the parameter.
pub(super) fn parameter(node: BorrowedFd<'_>, parameter: Parameter) -> Result<u64> {
    // The kernel writes an int or, from some versions on, 64 bits.
    let mut value = 0_u64;
    let mut request =
        GetParam { param: parameter as u64, value: (&raw mut value).expose_provenance() as u64 };
    // SAFETY: the opcode is of this struct, which the kernel reads and writes back.
    let update = unsafe { Updater::<GETPARAM, _>::new(&mut request) };
    // SAFETY: the kernel writes at most eight bytes where the struct points, which is `value`, alive and not borrowed.
    unsafe { ioctl(node, update) }?;
    Ok(value)
}

/// Returns the first `size` bytes of a capability set; the kernel appends zeros if the device's set is shorter.
///
/// # Errors
///
/// The device does not have this set.
pub(super) fn capability_set(node: BorrowedFd<'_>, set: u32, size: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0_u8; size];
    let address = bytes.as_mut_ptr().expose_provenance() as u64;
    let mut request = GetCaps { set, version: 0, address, size: u32::try_from(size).unwrap_or(0), pad: 0 };
    // SAFETY: the opcode is of this struct, which the kernel reads and writes back.
    let update = unsafe { Updater::<GET_CAPS, _>::new(&mut request) };
    // SAFETY: the kernel writes at most `request.size` bytes where the struct points, which is all of `bytes`, and not borrowed.
    unsafe { ioctl(node, update) }?;
    Ok(bytes)
}
