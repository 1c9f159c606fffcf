//! Feature bits and configuration space (VIRTIO 1.3, 5.7.3 and 5.7.4).

use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

bitflags::bitflags! {
    /// Device feature bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// `VIRTIO_GPU_F_VIRGL`: 3D contexts; no virgl command is implied.
        const VIRGL = 1 << 0;
        /// `VIRTIO_GPU_F_EDID`.
        const EDID = 1 << 1;
        /// `VIRTIO_GPU_F_RESOURCE_UUID`.
        const RESOURCE_UUID = 1 << 2;
        /// `VIRTIO_GPU_F_RESOURCE_BLOB`.
        const RESOURCE_BLOB = 1 << 3;
        /// `VIRTIO_GPU_F_CONTEXT_INIT`: several capability sets and fence timelines.
        const CONTEXT_INIT = 1 << 4;
    }
}

/// Id of the shared-memory region that host blobs are mapped into (`VIRTIO_GPU_SHM_ID_HOST_VISIBLE`).
pub const HOST_VISIBLE_SHMID: u8 = 1;

/// Most scanouts a device may have (`VIRTIO_GPU_MAX_SCANOUTS`).
pub const MAX_SCANOUTS: u32 = 16;

/// The configuration space, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Config {
    /// Pending events for the driver.
    pub events_read: U32,
    /// Written by the driver to clear events; reads as 0.
    pub events_clear: U32,
    /// Scanouts, 0 to [`MAX_SCANOUTS`].
    pub num_scanouts: U32,
    /// Capability sets.
    pub num_capsets: U32,
}

impl Config {
    /// The configuration of a device without pending events.
    pub fn new(num_scanouts: u32, num_capsets: u32) -> Self {
        Self {
            events_read: U32::ZERO,
            events_clear: U32::ZERO,
            num_scanouts: U32::new(num_scanouts),
            num_capsets: U32::new(num_capsets),
        }
    }
}
