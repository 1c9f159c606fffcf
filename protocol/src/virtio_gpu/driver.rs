//! The driver's half: requests to bytes and bytes to responses. For tests, fuzzing and the test bridge.

use super::command::Command;
use super::config::MAX_SCANOUTS;
use super::header::{CommandType, HEADER_BYTES, Header, HeaderFlags, ResponseType};
use super::response::{DisplayMode, Response};
use super::types::{Fence, FenceTimeline, MapCache, MemEntry};
use super::wire;
use crate::ids::{CapsetId, ContextId, FenceId, ResourceId, RingIdx};
use zerocopy::{FromBytes, IntoBytes};

impl Header {
    /// The header of a request for a context (`None`: for none) with a fence or without.
    pub fn request(command: CommandType, context: Option<ContextId>, fence: Option<Fence>) -> Self {
        let mut header = Self {
            command,
            flags: HeaderFlags::empty(),
            fence_id: FenceId(0),
            ctx_id: context.map_or(0, |ctx_id| ctx_id.0),
            ring_idx: RingIdx(0),
        };
        if let Some(fence) = fence {
            header.flags |= HeaderFlags::FENCE;
            header.fence_id = fence.fence_id;
            if let FenceTimeline::Ring(ring_idx) = fence.timeline {
                header.flags |= HeaderFlags::INFO_RING_IDX;
                header.ring_idx = ring_idx;
            }
        }
        header
    }
}

impl Command<'_> {
    /// The number on the wire.
    pub fn command_type(&self) -> CommandType {
        match self {
            Self::GetDisplayInfo => CommandType::GET_DISPLAY_INFO,
            Self::ResourceCreate2d { .. } => CommandType::RESOURCE_CREATE_2D,
            Self::ResourceUnref { .. } => CommandType::RESOURCE_UNREF,
            Self::SetScanout { .. } => CommandType::SET_SCANOUT,
            Self::ResourceFlush { .. } => CommandType::RESOURCE_FLUSH,
            Self::TransferToHost2d { .. } => CommandType::TRANSFER_TO_HOST_2D,
            Self::ResourceAttachBacking { .. } => CommandType::RESOURCE_ATTACH_BACKING,
            Self::ResourceDetachBacking { .. } => CommandType::RESOURCE_DETACH_BACKING,
            Self::GetCapsetInfo { .. } => CommandType::GET_CAPSET_INFO,
            Self::GetCapset { .. } => CommandType::GET_CAPSET,
            Self::GetEdid { .. } => CommandType::GET_EDID,
            Self::ResourceAssignUuid { .. } => CommandType::RESOURCE_ASSIGN_UUID,
            Self::ResourceCreateBlob { .. } => CommandType::RESOURCE_CREATE_BLOB,
            Self::SetScanoutBlob { .. } => CommandType::SET_SCANOUT_BLOB,
            Self::CtxCreate { .. } => CommandType::CTX_CREATE,
            Self::CtxDestroy => CommandType::CTX_DESTROY,
            Self::CtxAttachResource { .. } => CommandType::CTX_ATTACH_RESOURCE,
            Self::CtxDetachResource { .. } => CommandType::CTX_DETACH_RESOURCE,
            Self::Submit3d { .. } => CommandType::SUBMIT_3D,
            Self::ResourceMapBlob { .. } => CommandType::RESOURCE_MAP_BLOB,
            Self::ResourceUnmapBlob { .. } => CommandType::RESOURCE_UNMAP_BLOB,
            Self::UpdateCursor { .. } => CommandType::UPDATE_CURSOR,
            Self::MoveCursor { .. } => CommandType::MOVE_CURSOR,
        }
    }

    /// Appends the whole request: header and body.
    pub fn encode(&self, context: Option<ContextId>, fence: Option<Fence>, out: &mut Vec<u8>) {
        let header = Header::request(self.command_type(), context, fence);
        header.encode_as(header.command.0, out);
        match *self {
            Self::GetDisplayInfo | Self::CtxDestroy => {}
            Self::ResourceUnref { resource_id }
            | Self::ResourceDetachBacking { resource_id }
            | Self::ResourceAssignUuid { resource_id }
            | Self::CtxAttachResource { resource_id }
            | Self::CtxDetachResource { resource_id }
            | Self::ResourceUnmapBlob { resource_id } => {
                put(out, &wire::Resource { resource_id: resource_id.0.into(), padding: 0.into() });
            }
            Self::ResourceAttachBacking { .. }
            | Self::ResourceCreateBlob { .. }
            | Self::CtxCreate { .. }
            | Self::Submit3d { .. }
            | Self::ResourceMapBlob { .. } => self.encode_contexts_and_blobs(out),
            Self::GetCapsetInfo { capset_index } => {
                put(out, &wire::GetCapsetInfo { capset_index: capset_index.into(), padding: 0.into() });
            }
            Self::GetCapset { capset_id, capset_version } => {
                let (capset_id, capset_version) = (capset_id.0.into(), capset_version.into());
                put(out, &wire::GetCapset { capset_id, capset_version });
            }
            Self::GetEdid { scanout } => {
                put(out, &wire::GetEdid { scanout: scanout.0.into(), padding: 0.into() });
            }
            _ => self.encode_display(out),
        }
    }

    fn encode_contexts_and_blobs(&self, out: &mut Vec<u8>) {
        match *self {
            Self::ResourceAttachBacking { resource_id, entries } => {
                let (resource_id, nr_entries) = (resource_id.0.into(), count(entries).into());
                put(out, &wire::ResourceAttachBacking { resource_id, nr_entries });
                out.extend_from_slice(entries.as_bytes());
            }
            Self::ResourceCreateBlob { resource_id, blob_mem, blob_flags, blob_id, size, entries } => {
                let raw = wire::ResourceCreateBlob {
                    resource_id: resource_id.0.into(),
                    blob_mem: blob_mem.to_wire().into(),
                    blob_flags: blob_flags.bits().into(),
                    nr_entries: count(entries).into(),
                    blob_id: blob_id.0.into(),
                    size: size.into(),
                };
                put(out, &raw);
                out.extend_from_slice(entries.as_bytes());
            }
            Self::CtxCreate { capset_id, debug_name } => {
                let mut name = [0; 64];
                let nlen = debug_name.len().min(name.len());
                name[..nlen].copy_from_slice(&debug_name[..nlen]);
                let (nlen, context_init) = ((nlen as u32).into(), capset_id.0.into());
                put(out, &wire::CtxCreate { nlen, context_init, debug_name: name });
            }
            Self::Submit3d { data } => {
                put(out, &wire::Submit3d { size: (data.len() as u32).into(), padding: 0.into() });
                out.extend_from_slice(data);
            }
            Self::ResourceMapBlob { resource_id, offset } => {
                let (resource_id, offset) = (resource_id.0.into(), offset.into());
                put(out, &wire::ResourceMapBlob { resource_id, padding: 0.into(), offset });
            }
            _ => {}
        }
    }

    fn encode_display(&self, out: &mut Vec<u8>) {
        match *self {
            Self::ResourceCreate2d { resource_id, format, width, height } => {
                let resource_id = resource_id.0.into();
                let (format, width, height) = (format.into(), width.into(), height.into());
                put(out, &wire::ResourceCreate2d { resource_id, format, width, height });
            }
            Self::SetScanout { r, scanout_id, resource_id } => {
                let (scanout_id, resource_id) = (scanout_id.0.into(), id_or_zero(resource_id).into());
                put(out, &wire::SetScanout { r: r.into(), scanout_id, resource_id });
            }
            Self::ResourceFlush { r, resource_id } => {
                let resource_id = resource_id.0.into();
                put(out, &wire::ResourceFlush { r: r.into(), resource_id, padding: 0.into() });
            }
            Self::TransferToHost2d { r, offset, resource_id } => {
                let (offset, resource_id) = (offset.into(), resource_id.0.into());
                put(out, &wire::TransferToHost2d { r: r.into(), offset, resource_id, padding: 0.into() });
            }
            Self::SetScanoutBlob { r, scanout_id, resource_id, width, height, format, strides, offsets } => {
                let raw = wire::SetScanoutBlob {
                    r: r.into(),
                    scanout_id: scanout_id.0.into(),
                    resource_id: id_or_zero(resource_id).into(),
                    width: width.into(),
                    height: height.into(),
                    format: format.into(),
                    padding: 0.into(),
                    strides: strides.map(Into::into),
                    offsets: offsets.map(Into::into),
                };
                put(out, &raw);
            }
            Self::UpdateCursor { scanout_id, resource_id } => {
                put_cursor(out, scanout_id.0, id_or_zero(resource_id));
            }
            Self::MoveCursor { scanout_id } => put_cursor(out, scanout_id.0, 0),
            _ => {}
        }
    }
}

impl Response {
    /// Reads an answer and the header it echoes (whose `command` is the answer's type); `None` if it is no answer of this
    /// device.
    pub fn decode(bytes: &[u8]) -> Option<(Header, Self)> {
        let header = Header::decode(bytes)?;
        let body = bytes.get(HEADER_BYTES..)?;
        let response = match ResponseType(header.command.0) {
            ResponseType::OK_NODATA => Self::OkNodata,
            ResponseType::OK_DISPLAY_INFO => Self::OkDisplayInfo(decode_display_info(body)?),
            ResponseType::OK_CAPSET_INFO => {
                let (raw, _) = wire::RespCapsetInfo::ref_from_prefix(body).ok()?;
                Self::OkCapsetInfo {
                    capset_id: CapsetId(raw.capset_id.get()),
                    capset_max_version: raw.capset_max_version.get(),
                    capset_max_size: raw.capset_max_size.get(),
                }
            }
            ResponseType::OK_CAPSET => Self::OkCapset(body.to_vec()),
            ResponseType::OK_RESOURCE_UUID => Self::OkResourceUuid(*body.first_chunk()?),
            ResponseType::OK_MAP_INFO => {
                let (raw, _) = wire::RespMapInfo::ref_from_prefix(body).ok()?;
                Self::OkMapInfo(match raw.map_info.get() {
                    1 => MapCache::Cached,
                    2 => MapCache::Uncached,
                    3 => MapCache::WriteCombined,
                    _ => return None,
                })
            }
            error if (0x1200..0x1300).contains(&error.0) => Self::Err(error),
            _ => return None,
        };
        Some((header, response))
    }
}

fn decode_display_info(body: &[u8]) -> Option<Vec<DisplayMode>> {
    let count = MAX_SCANOUTS as usize;
    let (modes, _) = <[wire::DisplayOne]>::ref_from_prefix_with_elems(body, count).ok()?;
    Some(modes.iter().map(|m| DisplayMode { r: (&m.r).into(), enabled: m.enabled.get() != 0 }).collect())
}

fn put_cursor(out: &mut Vec<u8>, scanout_id: u32, resource_id: u32) {
    let zero = 0.into();
    let raw = wire::UpdateCursor {
        scanout_id: scanout_id.into(),
        x: zero,
        y: zero,
        pos_padding: zero,
        resource_id: resource_id.into(),
        hot_x: zero,
        hot_y: zero,
        padding: zero,
    };
    put(out, &raw);
}

fn put<T: IntoBytes + zerocopy::Immutable>(out: &mut Vec<u8>, raw: &T) {
    out.extend_from_slice(raw.as_bytes());
}

fn count(entries: &[MemEntry]) -> u32 {
    u32::try_from(entries.len()).unwrap_or(u32::MAX)
}

fn id_or_zero(id: Option<ResourceId>) -> u32 {
    id.map_or(0, |id| id.0)
}
