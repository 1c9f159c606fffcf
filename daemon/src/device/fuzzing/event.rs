//! What can happen to a device, in a form that a fuzzer can make from bytes. Ids are few, so that events meet.

use super::PAGE;
use arbitrary::{Arbitrary, Result, Unstructured};
use protocol::ids::{BlobId, CapsetId, FenceId, ResourceId, RingIdx, ScanoutId};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command, CommandType, Header, HeaderFlags};

/// One event.
#[derive(Debug, Arbitrary)]
pub enum Event {
    /// A command of the guest.
    Request { context: Id, fence: Option<GuestFence>, request: Request },
    /// A message of a worker; nothing if the context has none.
    Worker { context: Id, says: Says },
    /// From now on the host fails, or not.
    HostFails(bool),
    /// The driver resets the device.
    Reset {
        /// The frontend keeps mappings.
        maps_kept: bool,
    },
}

/// A context, resource, blob or fence: 0 to 7.
#[derive(Clone, Copy, Debug)]
pub struct Id(pub u32);

/// A fence, of the global timeline or of a ring.
#[derive(Debug, Arbitrary)]
pub struct GuestFence {
    ring_idx: Option<u8>,
    id: Id,
}

/// A command.
#[derive(Debug, Arbitrary)]
pub enum Request {
    CtxCreate { capset: Capset },
    CtxDestroy,
    Attach(Id),
    Detach(Id),
    Submit(u8),
    CreateBlob { resource: Id, memory: Memory, pages: Id, mappable: bool },
    Create2d(Id),
    Unref(Id),
    Map { resource: Id, offset: Offset },
    Unmap(Id),
    AssignUuid(Id),
    SetScanout { scanout: Id, resource: Option<Id> },
    Flush(Id),
    GetDisplayInfo,
    GetCapset(Id),
}

/// The capability set of a context.
#[derive(Debug, Arbitrary)]
pub enum Capset {
    /// None.
    Shell,
    /// Venus.
    Venus,
    /// Any.
    Any(u8),
}

/// Where a blob's memory comes from.
#[derive(Debug, Arbitrary)]
pub enum Memory {
    /// The guest.
    Guest,
    /// The device.
    Shared,
    /// A worker.
    Exported(Id),
    /// Both sides, which is refused.
    Hybrid,
}

/// An offset in the host-visible region.
#[derive(Debug, Arbitrary)]
pub enum Offset {
    /// That many half pages.
    HalfPages(u8),
    /// Whatever.
    Any(u64),
}

/// What a worker can say.
#[derive(Debug, Arbitrary)]
pub enum Says {
    Signalled { ring_idx: u8, fence: Id },
    Exported(Id),
    Refused(Id),
    Lost,
}

impl Arbitrary<'_> for Id {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        u.int_in_range(0..=7).map(Self)
    }

    fn size_hint(_: usize) -> (usize, Option<usize>) {
        (1, Some(1))
    }
}

impl From<Id> for ResourceId {
    fn from(id: Id) -> Self {
        // 0 is refused before commands get here.
        Self(id.0 + 1)
    }
}

/// The header of a request.
pub fn header(context: Id, fence: Option<&GuestFence>) -> Header {
    let ring_idx = fence.and_then(|fence| fence.ring_idx);
    let mut flags = HeaderFlags::empty();
    flags.set(HeaderFlags::FENCE, fence.is_some());
    flags.set(HeaderFlags::INFO_RING_IDX, ring_idx.is_some());
    Header {
        command: CommandType(0),
        flags,
        fence_id: FenceId(fence.map_or(0, |fence| fence.id.0.into())),
        ctx_id: context.0,
        ring_idx: RingIdx(ring_idx.unwrap_or(0)),
    }
}

impl Request {
    /// The command as the decoder would give it.
    pub fn command(&self) -> Command<'static> {
        match *self {
            Self::CtxCreate { ref capset } => {
                let capset_id = CapsetId(match capset {
                    Capset::Shell => 0,
                    Capset::Venus => CapsetId::VENUS.0,
                    Capset::Any(number) => (*number).into(),
                });
                Command::CtxCreate { capset_id, debug_name: b"app" }
            }
            Self::CtxDestroy => Command::CtxDestroy,
            Self::Attach(id) => Command::CtxAttachResource { resource_id: id.into() },
            Self::Detach(id) => Command::CtxDetachResource { resource_id: id.into() },
            Self::Submit(bytes) => Command::Submit3d { data: &[0; 256][..bytes.into()] },
            Self::CreateBlob { resource, ref memory, pages, mappable } => {
                let (blob_mem, blob_id) = match memory {
                    Memory::Guest => (BlobMem::Guest, 0),
                    Memory::Shared => (BlobMem::Host3d, 0),
                    Memory::Exported(id) => (BlobMem::Host3d, id.0 + 1),
                    Memory::Hybrid => (BlobMem::Host3dGuest, 0),
                };
                Command::ResourceCreateBlob {
                    resource_id: resource.into(),
                    blob_mem,
                    blob_flags: if mappable { BlobFlags::MAPPABLE } else { BlobFlags::empty() },
                    blob_id: BlobId(blob_id.into()),
                    size: PAGE * u64::from(pages.0 + 1),
                    entries: &[],
                }
            }
            Self::Create2d(id) => {
                Command::ResourceCreate2d { resource_id: id.into(), format: 1, width: 1, height: 1 }
            }
            Self::Unref(id) => Command::ResourceUnref { resource_id: id.into() },
            Self::Map { resource, ref offset } => {
                let offset = match offset {
                    Offset::HalfPages(count) => PAGE / 2 * u64::from(*count),
                    Offset::Any(offset) => *offset,
                };
                Command::ResourceMapBlob { resource_id: resource.into(), offset }
            }
            Self::Unmap(id) => Command::ResourceUnmapBlob { resource_id: id.into() },
            Self::AssignUuid(id) => Command::ResourceAssignUuid { resource_id: id.into() },
            Self::SetScanout { scanout, resource } => {
                let (scanout_id, resource_id) = (ScanoutId(scanout.0), resource.map(Into::into));
                Command::SetScanout { r: EMPTY, scanout_id, resource_id }
            }
            Self::Flush(id) => Command::ResourceFlush { r: EMPTY, resource_id: id.into() },
            Self::GetDisplayInfo => Command::GetDisplayInfo,
            Self::GetCapset(id) => Command::GetCapset { capset_id: CapsetId(id.0), capset_version: 0 },
        }
    }
}

const EMPTY: protocol::virtio_gpu::Rect = protocol::virtio_gpu::Rect { x: 0, y: 0, width: 0, height: 0 };
