//! Values that several commands share.

use super::wire;
use crate::ids::{FenceId, RingIdx};
use serde::{Deserialize, Serialize};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A rectangle in pixels (`struct virtio_gpu_rect`). It may lie anywhere: this crate does not check it against a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rect {
    /// Left edge.
    pub x: u32,
    /// Upper edge.
    pub y: u32,
    /// Width.
    pub width: u32,
    /// Height.
    pub height: u32,
}

impl From<&wire::Rect> for Rect {
    fn from(raw: &wire::Rect) -> Self {
        Self { x: raw.x.get(), y: raw.y.get(), width: raw.width.get(), height: raw.height.get() }
    }
}

impl From<Rect> for wire::Rect {
    fn from(rect: Rect) -> Self {
        Self { x: rect.x.into(), y: rect.y.into(), width: rect.width.into(), height: rect.height.into() }
    }
}

/// One piece of guest memory behind a resource (`struct virtio_gpu_mem_entry`), viewed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MemEntry {
    /// Guest-physical address.
    pub addr: U64,
    /// Bytes.
    pub length: U32,
    /// Unused.
    pub padding: U32,
}

/// The place of a blob's pages (`VIRTIO_GPU_BLOB_MEM_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobMem {
    /// Guest memory only (1).
    Guest,
    /// Host memory (2).
    Host3d,
    /// Host memory with a guest copy (3).
    Host3dGuest,
}

impl BlobMem {
    pub(super) fn from_wire(value: u32) -> Option<Self> {
        match value {
            1 => Some(Self::Guest),
            2 => Some(Self::Host3d),
            3 => Some(Self::Host3dGuest),
            _ => None,
        }
    }

    #[cfg(feature = "driver")]
    pub(super) fn to_wire(self) -> u32 {
        match self {
            Self::Guest => 1,
            Self::Host3d => 2,
            Self::Host3dGuest => 3,
        }
    }
}

bitflags::bitflags! {
    /// The uses that a guest wants to make of a blob (`VIRTIO_GPU_BLOB_FLAG_USE_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BlobFlags: u32 {
        /// Map it.
        const MAPPABLE = 1 << 0;
        /// Share it between contexts.
        const SHAREABLE = 1 << 1;
        /// Share it with other virtio devices.
        const CROSS_DEVICE = 1 << 2;
    }
}

/// The caching with which a guest must map a blob (`VIRTIO_GPU_MAP_CACHE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum MapCache {
    /// Ordinary write-back memory.
    Cached = 1,
    /// Uncached.
    Uncached = 2,
    /// Write-combined.
    WriteCombined = 3,
}

/// The timeline on which a fence is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FenceTimeline {
    /// The device's own timeline, for drivers that name no ring.
    Global,
    /// A timeline of the request's context.
    Ring(RingIdx),
}

/// A fence a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The timeline on which the fence is ordered.
    pub timeline: FenceTimeline,
    /// The id of the fence.
    pub fence_id: FenceId,
}
