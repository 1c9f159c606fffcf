//! The header of every request and response (`struct virtio_gpu_ctrl_hdr`, VIRTIO 1.3, 5.7.6.7).

use super::types::{Fence, FenceTimeline};
use super::wire;
use crate::ids::{ContextId, FenceId, RingIdx};
use std::fmt;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 24;

/// The type of a request (`VIRTIO_GPU_CMD_*`), known or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandType(pub u32);

/// The type of a response (`VIRTIO_GPU_RESP_*`), known or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResponseType(pub u32);

bitflags::bitflags! {
    /// Header flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HeaderFlags: u32 {
        /// `VIRTIO_GPU_FLAG_FENCE`: answer once the command is completely done; `fence_id` is valid.
        const FENCE = 1 << 0;
        /// `VIRTIO_GPU_FLAG_INFO_RING_IDX`: the fence belongs to the timeline `ring_idx` of the context.
        const INFO_RING_IDX = 1 << 1;
    }
}

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The command.
    pub command: CommandType,
    /// Flags; unknown ones are dropped.
    pub flags: HeaderFlags,
    /// Only meaningful with [`HeaderFlags::FENCE`], echoed in any case.
    pub fence_id: FenceId,
    /// The context a command is for; 0 for commands that need none.
    pub ctx_id: u32,
    /// Only meaningful with [`HeaderFlags::INFO_RING_IDX`], echoed in any case.
    pub ring_idx: RingIdx,
}

impl Header {
    /// Reads the header at the start of a request; `None` if the request has fewer than [`HEADER_BYTES`] bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = wire::CtrlHdr::ref_from_prefix(bytes).ok()?;
        Some(Self {
            command: CommandType(raw.type_.get()),
            flags: HeaderFlags::from_bits_truncate(raw.flags.get()),
            fence_id: FenceId(raw.fence_id.get()),
            ctx_id: raw.ctx_id.get(),
            ring_idx: RingIdx(raw.ring_idx),
        })
    }

    /// The context, if the driver named one.
    pub fn context(&self) -> Option<ContextId> {
        (self.ctx_id != 0).then_some(ContextId(self.ctx_id))
    }

    /// The fence, if there is one.
    pub fn fence(&self) -> Option<Fence> {
        let timeline = if self.flags.contains(HeaderFlags::INFO_RING_IDX) {
            FenceTimeline::Ring(self.ring_idx)
        } else {
            FenceTimeline::Global
        };
        self.flags.contains(HeaderFlags::FENCE).then_some(Fence { timeline, fence_id: self.fence_id })
    }

    /// Appends this header with another type: the echo a response starts with, or a request's own.
    pub(super) fn encode_as(&self, type_: u32, out: &mut Vec<u8>) {
        let raw = wire::CtrlHdr {
            type_: type_.into(),
            flags: self.flags.bits().into(),
            fence_id: self.fence_id.0.into(),
            ctx_id: self.ctx_id.into(),
            ring_idx: self.ring_idx.0,
            padding: [0; 3],
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

impl CommandType {
    /// `VIRTIO_GPU_CMD_GET_DISPLAY_INFO`.
    pub const GET_DISPLAY_INFO: Self = Self(0x100);
    /// `VIRTIO_GPU_CMD_RESOURCE_CREATE_2D`.
    pub const RESOURCE_CREATE_2D: Self = Self(0x101);
    /// `VIRTIO_GPU_CMD_RESOURCE_UNREF`.
    pub const RESOURCE_UNREF: Self = Self(0x102);
    /// `VIRTIO_GPU_CMD_SET_SCANOUT`.
    pub const SET_SCANOUT: Self = Self(0x103);
    /// `VIRTIO_GPU_CMD_RESOURCE_FLUSH`.
    pub const RESOURCE_FLUSH: Self = Self(0x104);
    /// `VIRTIO_GPU_CMD_TRANSFER_TO_HOST_2D`.
    pub const TRANSFER_TO_HOST_2D: Self = Self(0x105);
    /// `VIRTIO_GPU_CMD_RESOURCE_ATTACH_BACKING`.
    pub const RESOURCE_ATTACH_BACKING: Self = Self(0x106);
    /// `VIRTIO_GPU_CMD_RESOURCE_DETACH_BACKING`.
    pub const RESOURCE_DETACH_BACKING: Self = Self(0x107);
    /// `VIRTIO_GPU_CMD_GET_CAPSET_INFO`.
    pub const GET_CAPSET_INFO: Self = Self(0x108);
    /// `VIRTIO_GPU_CMD_GET_CAPSET`.
    pub const GET_CAPSET: Self = Self(0x109);
    /// `VIRTIO_GPU_CMD_GET_EDID`.
    pub const GET_EDID: Self = Self(0x10a);
    /// `VIRTIO_GPU_CMD_RESOURCE_ASSIGN_UUID`.
    pub const RESOURCE_ASSIGN_UUID: Self = Self(0x10b);
    /// `VIRTIO_GPU_CMD_RESOURCE_CREATE_BLOB`.
    pub const RESOURCE_CREATE_BLOB: Self = Self(0x10c);
    /// `VIRTIO_GPU_CMD_SET_SCANOUT_BLOB`.
    pub const SET_SCANOUT_BLOB: Self = Self(0x10d);
    /// `VIRTIO_GPU_CMD_CTX_CREATE`.
    pub const CTX_CREATE: Self = Self(0x200);
    /// `VIRTIO_GPU_CMD_CTX_DESTROY`.
    pub const CTX_DESTROY: Self = Self(0x201);
    /// `VIRTIO_GPU_CMD_CTX_ATTACH_RESOURCE`.
    pub const CTX_ATTACH_RESOURCE: Self = Self(0x202);
    /// `VIRTIO_GPU_CMD_CTX_DETACH_RESOURCE`.
    pub const CTX_DETACH_RESOURCE: Self = Self(0x203);
    /// `VIRTIO_GPU_CMD_RESOURCE_CREATE_3D`: virgl only.
    pub const RESOURCE_CREATE_3D: Self = Self(0x204);
    /// `VIRTIO_GPU_CMD_TRANSFER_TO_HOST_3D`: virgl only.
    pub const TRANSFER_TO_HOST_3D: Self = Self(0x205);
    /// `VIRTIO_GPU_CMD_TRANSFER_FROM_HOST_3D`: virgl only.
    pub const TRANSFER_FROM_HOST_3D: Self = Self(0x206);
    /// `VIRTIO_GPU_CMD_SUBMIT_3D`.
    pub const SUBMIT_3D: Self = Self(0x207);
    /// `VIRTIO_GPU_CMD_RESOURCE_MAP_BLOB`.
    pub const RESOURCE_MAP_BLOB: Self = Self(0x208);
    /// `VIRTIO_GPU_CMD_RESOURCE_UNMAP_BLOB`.
    pub const RESOURCE_UNMAP_BLOB: Self = Self(0x209);
    /// `VIRTIO_GPU_CMD_UPDATE_CURSOR`.
    pub const UPDATE_CURSOR: Self = Self(0x300);
    /// `VIRTIO_GPU_CMD_MOVE_CURSOR`.
    pub const MOVE_CURSOR: Self = Self(0x301);
}

/// The specification's name for a known type, without its prefix.
impl fmt::Display for CommandType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::RESOURCE_CREATE_2D => "RESOURCE_CREATE_2D",
            Self::RESOURCE_UNREF => "RESOURCE_UNREF",
            Self::SET_SCANOUT => "SET_SCANOUT",
            Self::RESOURCE_FLUSH => "RESOURCE_FLUSH",
            Self::TRANSFER_TO_HOST_2D => "TRANSFER_TO_HOST_2D",
            Self::RESOURCE_ATTACH_BACKING => "RESOURCE_ATTACH_BACKING",
            Self::RESOURCE_DETACH_BACKING => "RESOURCE_DETACH_BACKING",
            Self::RESOURCE_CREATE_BLOB => "RESOURCE_CREATE_BLOB",
            Self::SET_SCANOUT_BLOB => "SET_SCANOUT_BLOB",
            Self::CTX_CREATE => "CTX_CREATE",
            Self::CTX_DESTROY => "CTX_DESTROY",
            Self::CTX_ATTACH_RESOURCE => "CTX_ATTACH_RESOURCE",
            Self::CTX_DETACH_RESOURCE => "CTX_DETACH_RESOURCE",
            Self::SUBMIT_3D => "SUBMIT_3D",
            Self::RESOURCE_MAP_BLOB => "RESOURCE_MAP_BLOB",
            Self::RESOURCE_UNMAP_BLOB => "RESOURCE_UNMAP_BLOB",
            Self(other) => return write!(f, "command {other:#x}"),
        };
        f.write_str(name)
    }
}

impl ResponseType {
    /// `VIRTIO_GPU_RESP_OK_NODATA`.
    pub const OK_NODATA: Self = Self(0x1100);
    /// `VIRTIO_GPU_RESP_OK_DISPLAY_INFO`.
    pub const OK_DISPLAY_INFO: Self = Self(0x1101);
    /// `VIRTIO_GPU_RESP_OK_CAPSET_INFO`.
    pub const OK_CAPSET_INFO: Self = Self(0x1102);
    /// `VIRTIO_GPU_RESP_OK_CAPSET`.
    pub const OK_CAPSET: Self = Self(0x1103);
    /// `VIRTIO_GPU_RESP_OK_EDID`.
    pub const OK_EDID: Self = Self(0x1104);
    /// `VIRTIO_GPU_RESP_OK_RESOURCE_UUID`.
    pub const OK_RESOURCE_UUID: Self = Self(0x1105);
    /// `VIRTIO_GPU_RESP_OK_MAP_INFO`.
    pub const OK_MAP_INFO: Self = Self(0x1106);
    /// `VIRTIO_GPU_RESP_ERR_UNSPEC`.
    pub const ERR_UNSPEC: Self = Self(0x1200);
    /// `VIRTIO_GPU_RESP_ERR_OUT_OF_MEMORY`.
    pub const ERR_OUT_OF_MEMORY: Self = Self(0x1201);
    /// `VIRTIO_GPU_RESP_ERR_INVALID_SCANOUT_ID`.
    pub const ERR_INVALID_SCANOUT_ID: Self = Self(0x1202);
    /// `VIRTIO_GPU_RESP_ERR_INVALID_RESOURCE_ID`.
    pub const ERR_INVALID_RESOURCE_ID: Self = Self(0x1203);
    /// `VIRTIO_GPU_RESP_ERR_INVALID_CONTEXT_ID`.
    pub const ERR_INVALID_CONTEXT_ID: Self = Self(0x1204);
    /// `VIRTIO_GPU_RESP_ERR_INVALID_PARAMETER`.
    pub const ERR_INVALID_PARAMETER: Self = Self(0x1205);
}
