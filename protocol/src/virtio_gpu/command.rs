//! Requests as values that are valid on their own (VIRTIO 1.3, 5.7.6.8 to 5.7.6.10).

use super::header::{CommandType, HEADER_BYTES, Header, ResponseType};
use super::types::{BlobFlags, BlobMem, MemEntry, Rect};
use super::wire;
use crate::ids::{BlobId, CapsetId, ResourceId, ScanoutId};
use std::fmt;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Bounds on the variable parts of a command.
#[derive(Clone, Copy, Debug)]
pub struct CommandLimits {
    /// Entries of one scatter list.
    pub backing_entries: u32,
    /// Bytes of one SUBMIT_3D payload.
    pub submit_bytes: u32,
}

/// A request. Borrows its variable part from the request's bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // The fields are the specification's.
pub enum Command<'a> {
    GetDisplayInfo,
    ResourceCreate2d {
        resource_id: ResourceId,
        format: u32,
        width: u32,
        height: u32,
    },
    ResourceUnref {
        resource_id: ResourceId,
    },
    SetScanout {
        r: Rect,
        scanout_id: ScanoutId,
        resource_id: Option<ResourceId>,
    },
    ResourceFlush {
        r: Rect,
        resource_id: ResourceId,
    },
    TransferToHost2d {
        r: Rect,
        offset: u64,
        resource_id: ResourceId,
    },
    ResourceAttachBacking {
        resource_id: ResourceId,
        entries: &'a [MemEntry],
    },
    ResourceDetachBacking {
        resource_id: ResourceId,
    },
    GetCapsetInfo {
        capset_index: u32,
    },
    GetCapset {
        capset_id: CapsetId,
        capset_version: u32,
    },
    GetEdid {
        scanout: ScanoutId,
    },
    ResourceAssignUuid {
        resource_id: ResourceId,
    },
    ResourceCreateBlob {
        resource_id: ResourceId,
        blob_mem: BlobMem,
        blob_flags: BlobFlags,
        blob_id: BlobId,
        /// Bytes, never 0, a multiple of 4096.
        size: u64,
        entries: &'a [MemEntry],
    },
    SetScanoutBlob {
        r: Rect,
        scanout_id: ScanoutId,
        resource_id: Option<ResourceId>,
        width: u32,
        height: u32,
        format: u32,
        strides: [u32; 4],
        offsets: [u32; 4],
    },
    CtxCreate {
        /// Bits 0 to 7 of `context_init`; 0 is a context without a capability set.
        capset_id: CapsetId,
        /// `nlen` bytes of the name, in any content that the driver put there.
        debug_name: &'a [u8],
    },
    CtxDestroy,
    CtxAttachResource {
        resource_id: ResourceId,
    },
    CtxDetachResource {
        resource_id: ResourceId,
    },
    Submit3d {
        data: &'a [u8],
    },
    ResourceMapBlob {
        resource_id: ResourceId,
        /// Byte offset in the host-visible region.
        offset: u64,
    },
    ResourceUnmapBlob {
        resource_id: ResourceId,
    },
    UpdateCursor {
        scanout_id: ScanoutId,
        resource_id: Option<ResourceId>,
    },
    MoveCursor {
        scanout_id: ScanoutId,
    },
}

/// The form for logs shows only the length of fields that the guest chooses freely.
impl fmt::Display for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submit3d { data } => write!(f, "Submit3d of {} bytes", data.len()),
            Self::CtxCreate { capset_id, debug_name } => {
                write!(f, "CtxCreate with capset {capset_id}, name of {} bytes", debug_name.len())
            }
            Self::ResourceAttachBacking { resource_id, entries } => {
                write!(f, "ResourceAttachBacking of resource {resource_id}, {} entries", entries.len())
            }
            Self::ResourceCreateBlob { resource_id, blob_mem, blob_id, size, .. } => {
                write!(f, "ResourceCreateBlob {resource_id}: {blob_mem:?}, blob id {blob_id}, {size} bytes")
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// The reason for which bytes are no command of this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Fewer bytes than the command and its lists need.
    #[error("the request is shorter than its command")]
    TooShort,
    /// The command is none of this device's; virgl's are among these.
    #[error("unknown command {:#x}", .0.0)]
    Unknown(CommandType),
    /// A resource id of 0 where one is needed.
    #[error("resource id 0")]
    NoResource,
    /// A field holds a value that it may not.
    #[error("invalid {0}")]
    Invalid(&'static str),
    /// A list or payload exceeds a limit of the device.
    #[error("{0} exceeds the device's limit")]
    OverLimit(&'static str),
}

impl CommandError {
    /// Returns the response that the driver gets.
    pub fn response(self) -> ResponseType {
        match self {
            Self::TooShort | Self::Unknown(_) => ResponseType::ERR_UNSPEC,
            Self::NoResource => ResponseType::ERR_INVALID_RESOURCE_ID,
            Self::Invalid(_) => ResponseType::ERR_INVALID_PARAMETER,
            Self::OverLimit(_) => ResponseType::ERR_OUT_OF_MEMORY,
        }
    }
}

impl<'a> Command<'a> {
    /// Decodes the request `bytes`, whose header is `header`. Bytes behind the command are ignored.
    pub fn decode(header: &Header, bytes: &'a [u8], limits: &CommandLimits) -> Result<Self, CommandError> {
        let body = bytes.get(HEADER_BYTES..).ok_or(CommandError::TooShort)?;
        match header.command {
            CommandType::GET_DISPLAY_INFO => Ok(Self::GetDisplayInfo),
            CommandType::RESOURCE_CREATE_2D => resource_create_2d(body),
            CommandType::RESOURCE_UNREF => Ok(Self::ResourceUnref { resource_id: one_resource(body)? }),
            CommandType::SET_SCANOUT => set_scanout(body),
            CommandType::RESOURCE_FLUSH => resource_flush(body),
            CommandType::TRANSFER_TO_HOST_2D => transfer_to_host_2d(body),
            CommandType::RESOURCE_ATTACH_BACKING => resource_attach_backing(body, limits),
            CommandType::RESOURCE_DETACH_BACKING => {
                Ok(Self::ResourceDetachBacking { resource_id: one_resource(body)? })
            }
            CommandType::GET_CAPSET_INFO => {
                let (raw, _) = split::<wire::GetCapsetInfo>(body)?;
                Ok(Self::GetCapsetInfo { capset_index: raw.capset_index.get() })
            }
            CommandType::GET_CAPSET => get_capset(body),
            CommandType::GET_EDID => {
                Ok(Self::GetEdid { scanout: ScanoutId(split::<wire::GetEdid>(body)?.0.scanout.get()) })
            }
            CommandType::RESOURCE_ASSIGN_UUID => {
                Ok(Self::ResourceAssignUuid { resource_id: one_resource(body)? })
            }
            CommandType::RESOURCE_CREATE_BLOB => resource_create_blob(body, limits),
            CommandType::SET_SCANOUT_BLOB => set_scanout_blob(body),
            CommandType::CTX_CREATE => ctx_create(body),
            CommandType::CTX_DESTROY => Ok(Self::CtxDestroy),
            CommandType::CTX_ATTACH_RESOURCE => {
                Ok(Self::CtxAttachResource { resource_id: one_resource(body)? })
            }
            CommandType::CTX_DETACH_RESOURCE => {
                Ok(Self::CtxDetachResource { resource_id: one_resource(body)? })
            }
            CommandType::SUBMIT_3D => submit_3d(body, limits),
            CommandType::RESOURCE_MAP_BLOB => {
                let (raw, _) = split::<wire::ResourceMapBlob>(body)?;
                Ok(Self::ResourceMapBlob {
                    resource_id: resource(raw.resource_id.get())?,
                    offset: raw.offset.get(),
                })
            }
            CommandType::RESOURCE_UNMAP_BLOB => {
                Ok(Self::ResourceUnmapBlob { resource_id: one_resource(body)? })
            }
            CommandType::UPDATE_CURSOR => {
                let (raw, _) = split::<wire::UpdateCursor>(body)?;
                let scanout_id = ScanoutId(raw.scanout_id.get());
                Ok(Self::UpdateCursor { scanout_id, resource_id: optional(raw.resource_id.get()) })
            }
            CommandType::MOVE_CURSOR => {
                let (raw, _) = split::<wire::UpdateCursor>(body)?;
                Ok(Self::MoveCursor { scanout_id: ScanoutId(raw.scanout_id.get()) })
            }
            unknown => Err(CommandError::Unknown(unknown)),
        }
    }
}

fn resource_create_2d(body: &[u8]) -> Result<Command<'_>, CommandError> {
    let (raw, _) = split::<wire::ResourceCreate2d>(body)?;
    let (width, height) = (raw.width.get(), raw.height.get());
    if width == 0 || height == 0 {
        return Err(CommandError::Invalid("size of a 2D resource"));
    }
    let resource_id = resource(raw.resource_id.get())?;
    Ok(Command::ResourceCreate2d { resource_id, format: raw.format.get(), width, height })
}

fn set_scanout(body: &[u8]) -> Result<Command<'_>, CommandError> {
    let (raw, _) = split::<wire::SetScanout>(body)?;
    Ok(Command::SetScanout {
        r: (&raw.r).into(),
        scanout_id: ScanoutId(raw.scanout_id.get()),
        resource_id: optional(raw.resource_id.get()),
    })
}

fn resource_flush(body: &[u8]) -> Result<Command<'_>, CommandError> {
    let (raw, _) = split::<wire::ResourceFlush>(body)?;
    Ok(Command::ResourceFlush { r: (&raw.r).into(), resource_id: resource(raw.resource_id.get())? })
}

fn transfer_to_host_2d(body: &[u8]) -> Result<Command<'_>, CommandError> {
    let (raw, _) = split::<wire::TransferToHost2d>(body)?;
    let resource_id = resource(raw.resource_id.get())?;
    Ok(Command::TransferToHost2d { r: (&raw.r).into(), offset: raw.offset.get(), resource_id })
}

fn resource_attach_backing<'a>(body: &'a [u8], limits: &CommandLimits) -> Result<Command<'a>, CommandError> {
    let (raw, rest) = split::<wire::ResourceAttachBacking>(body)?;
    let entries = entries(rest, raw.nr_entries.get(), limits)?;
    Ok(Command::ResourceAttachBacking { resource_id: resource(raw.resource_id.get())?, entries })
}

fn get_capset(body: &[u8]) -> Result<Command<'_>, CommandError> {
    let (raw, _) = split::<wire::GetCapset>(body)?;
    let capset_id = CapsetId(raw.capset_id.get());
    Ok(Command::GetCapset { capset_id, capset_version: raw.capset_version.get() })
}

fn resource_create_blob<'a>(body: &'a [u8], limits: &CommandLimits) -> Result<Command<'a>, CommandError> {
    let (raw, rest) = split::<wire::ResourceCreateBlob>(body)?;
    let size = raw.size.get();
    if size == 0 || !size.is_multiple_of(4096) {
        return Err(CommandError::Invalid("blob size"));
    }
    Ok(Command::ResourceCreateBlob {
        resource_id: resource(raw.resource_id.get())?,
        blob_mem: BlobMem::from_wire(raw.blob_mem.get()).ok_or(CommandError::Invalid("blob_mem"))?,
        blob_flags: BlobFlags::from_bits(raw.blob_flags.get()).ok_or(CommandError::Invalid("blob_flags"))?,
        blob_id: BlobId(raw.blob_id.get()),
        size,
        entries: entries(rest, raw.nr_entries.get(), limits)?,
    })
}

fn set_scanout_blob(body: &[u8]) -> Result<Command<'_>, CommandError> {
    let (raw, _) = split::<wire::SetScanoutBlob>(body)?;
    Ok(Command::SetScanoutBlob {
        r: (&raw.r).into(),
        scanout_id: ScanoutId(raw.scanout_id.get()),
        resource_id: optional(raw.resource_id.get()),
        width: raw.width.get(),
        height: raw.height.get(),
        format: raw.format.get(),
        strides: raw.strides.map(|v| v.get()),
        offsets: raw.offsets.map(|v| v.get()),
    })
}

fn ctx_create(body: &[u8]) -> Result<Command<'_>, CommandError> {
    let (raw, _) = split::<wire::CtxCreate>(body)?;
    let debug_name = usize::try_from(raw.nlen.get()).ok().and_then(|nlen| raw.debug_name.get(..nlen));
    Ok(Command::CtxCreate {
        capset_id: CapsetId(raw.context_init.get() & 0xff),
        debug_name: debug_name.ok_or(CommandError::Invalid("nlen"))?,
    })
}

fn submit_3d<'a>(body: &'a [u8], limits: &CommandLimits) -> Result<Command<'a>, CommandError> {
    let (raw, rest) = split::<wire::Submit3d>(body)?;
    if raw.size.get() > limits.submit_bytes {
        return Err(CommandError::OverLimit("submit_bytes"));
    }
    let data = usize::try_from(raw.size.get()).ok().and_then(|size| rest.get(..size));
    Ok(Command::Submit3d { data: data.ok_or(CommandError::TooShort)? })
}

/// Views the fixed part of a command and returns the bytes that follow it.
fn split<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    body: &[u8],
) -> Result<(&T, &[u8]), CommandError> {
    T::ref_from_prefix(body).map_err(|_| CommandError::TooShort)
}

fn entries<'a>(
    rest: &'a [u8],
    nr_entries: u32,
    limits: &CommandLimits,
) -> Result<&'a [MemEntry], CommandError> {
    if nr_entries > limits.backing_entries {
        return Err(CommandError::OverLimit("backing_entries"));
    }
    let count = usize::try_from(nr_entries).map_err(|_| CommandError::TooShort)?;
    let (entries, _) =
        <[MemEntry]>::ref_from_prefix_with_elems(rest, count).map_err(|_| CommandError::TooShort)?;
    Ok(entries)
}

fn one_resource(body: &[u8]) -> Result<ResourceId, CommandError> {
    resource(split::<wire::Resource>(body)?.0.resource_id.get())
}

fn resource(id: u32) -> Result<ResourceId, CommandError> {
    optional(id).ok_or(CommandError::NoResource)
}

fn optional(id: u32) -> Option<ResourceId> {
    (id != 0).then_some(ResourceId(id))
}
