//! The events that can happen to a device, in a form that a fuzzer can make from bytes. Ids are few, so that events meet.

use super::PAGE;
use arbitrary::{Arbitrary, Result, Unstructured};
use config::{Heap, Wanted};
use protocol::ids::{BlobId, CapsetId, FenceId, ResourceId, RingIdx, ScanoutId};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command, CommandType, Header, HeaderFlags};

/// One event.
#[derive(Debug)]
pub(crate) enum Event {
    /// A command of the guest.
    Request { context: Context, fence: Option<GuestFence>, request: Request },
    /// A message of a worker; nothing happens if the context has no worker.
    Worker { context: Context, says: Says },
    /// From now on effects of the host fail, or succeed again.
    HostFails(bool),
    /// The driver resets the device.
    Reset {
        /// The frontend keeps mappings.
        maps_kept: bool,
    },
}

/// A context: mostly 1 to 3, sometimes none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub u32);

/// The id of a resource, blob, timeline or fence: 0 to 3. With more, events would hardly ever meet.
#[derive(Clone, Copy, Debug)]
pub struct Id(pub u32);

/// A fence, of the global timeline or of a ring.
#[derive(Debug, Arbitrary)]
pub(crate) struct GuestFence {
    ring_idx: Option<Id>,
    id: Id,
}

/// A command.
#[derive(Debug)]
pub(crate) enum Request {
    CtxCreate { capset: Capset },
    CtxDestroy,
    Attach(Id),
    Detach(Id),
    Submit(u8),
    CreateBlob { resource: Id, memory: Memory, pages: Id, mappable: bool },
    Unref(Id),
    Map { resource: Id, offset: Offset },
    Unmap(Id),
    Bookkeeping(Bookkeeping),
}

/// A command without effects on workers or memory. Such commands are grouped, to be rarer.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) enum Bookkeeping {
    Create2d(Id),
    AssignUuid(Id),
    SetScanout { scanout: Id, resource: Option<Id> },
    Flush(Id),
    GetDisplayInfo,
    GetCapset(Id),
}

/// The capability set of a context, mostly Venus.
#[derive(Debug)]
pub(crate) struct Capset(CapsetId);

/// The place that a blob's memory comes from.
#[derive(Debug)]
pub(crate) enum Memory {
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
#[derive(Debug)]
pub(crate) enum Offset {
    /// The size is that many pages.
    Pages(Id),
    /// The size is that many half pages.
    HalfPages(u8),
    /// The size is any number.
    Any(u64),
}

/// The messages of a worker.
#[derive(Debug)]
pub(crate) enum Says {
    /// The worker has started.
    Started,
    Signalled {
        ring_idx: Id,
        fence: Id,
    },
    Exported(Id),
    Refused(Id),
    /// The worker asks for memory, or lets go of some.
    Wants(Wanted),
    /// The worker asks for its budget.
    WantsBudget,
    Returns(Id),
    GivesCredit {
        heap: Heap,
        pages: u64,
    },
    Lost,
    /// The context is being handed over.
    HandsOver(Step),
}

/// A step in the hand-over of a context; nothing happens if another step is due.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) enum Step {
    /// A successor has started, and is shown the context's resources.
    Begins,
    /// The successor lets go of a piece.
    Returns(Id),
    /// The successor says that it takes a piece over.
    Takes(Id),
    /// The worker has handed over.
    Rests,
    /// The successor has taken over.
    Done,
    /// The successor ends, and the worker goes on.
    CalledOff,
}

/// Resets and failures of the host are rare enough for the rest to get somewhere between them.
impl Arbitrary<'_> for Event {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        Ok(match u.int_in_range(0..=63)? {
            0 => Self::Reset { maps_kept: u.arbitrary()? },
            1 => Self::HostFails(true),
            2..=5 => Self::HostFails(false),
            6..=19 => Self::Worker { context: u.arbitrary()?, says: u.arbitrary()? },
            _ => Self::Request { context: u.arbitrary()?, fence: u.arbitrary()?, request: u.arbitrary()? },
        })
    }
}

/// A context that is lost is of little interest afterwards.
impl Arbitrary<'_> for Says {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        Ok(match u.int_in_range(0..=31)? {
            0 => Self::Lost,
            1..=4 => Self::Refused(u.arbitrary()?),
            5..=11 => Self::Exported(u.arbitrary()?),
            12..=15 => Self::Wants(wanted(u)?),
            16..=18 => Self::Returns(u.arbitrary()?),
            19 => Self::GivesCredit { heap: heap(u)?, pages: u.int_in_range(0..=4)? },
            20 => Self::WantsBudget,
            21 => Self::Started,
            26..=31 => Self::HandsOver(u.arbitrary()?),
            _ => Self::Signalled { ring_idx: u.arbitrary()?, fence: u.arbitrary()? },
        })
    }
}

fn heap(u: &mut Unstructured<'_>) -> Result<Heap> {
    Ok(if u.arbitrary()? { Heap::Device } else { Heap::Host })
}

fn wanted(u: &mut Unstructured<'_>) -> Result<Wanted> {
    let mut bytes = || Ok::<_, arbitrary::Error>(PAGE * u.int_in_range(0..=3)?);
    let (least, more) = (bytes()?, bytes()?);
    Ok(match u.int_in_range(0..=7)? {
        0 => Wanted::Piece { heap: heap(u)?, bytes: least },
        1 => Wanted::Pages(u.arbitrary()?),
        2..=3 => Wanted::Credit { heap: heap(u)?, least, bytes: least + more },
        _ => Wanted::Pages(least),
    })
}

/// The requests that must come together to matter are frequent: contexts, blobs, mappings.
impl Arbitrary<'_> for Request {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        Ok(match u.int_in_range(0..=31)? {
            0..=3 => Self::CtxCreate { capset: u.arbitrary()? },
            4 => Self::CtxDestroy,
            5..=10 => Self::CreateBlob {
                resource: u.arbitrary()?,
                memory: u.arbitrary()?,
                pages: u.arbitrary()?,
                mappable: !u.ratio(1, 8)?,
            },
            11..=15 => Self::Map { resource: u.arbitrary()?, offset: u.arbitrary()? },
            16..=17 => Self::Unmap(u.arbitrary()?),
            18..=20 => Self::Attach(u.arbitrary()?),
            21..=22 => Self::Detach(u.arbitrary()?),
            23..=24 => Self::Unref(u.arbitrary()?),
            25..=28 => Self::Submit(u.arbitrary()?),
            _ => Self::Bookkeeping(u.arbitrary()?),
        })
    }
}

impl Arbitrary<'_> for Memory {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        Ok(match u.int_in_range(0..=15)? {
            0 => Self::Guest,
            1 => Self::Hybrid,
            2..=8 => Self::Shared,
            _ => Self::Exported(u.arbitrary()?),
        })
    }
}

impl Arbitrary<'_> for Offset {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        Ok(match u.int_in_range(0..=15)? {
            0 => Self::Any(u.arbitrary()?),
            1 => Self::HalfPages(u.arbitrary()?),
            _ => Self::Pages(u.arbitrary()?),
        })
    }
}

impl Arbitrary<'_> for Context {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        let number = u.int_in_range(0..=15)?;
        Ok(Self(if number == 0 { 0 } else { 1 + number % 3 }))
    }
}

impl Arbitrary<'_> for Capset {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        let number = u.int_in_range(0..=15)?;
        Ok(Self(if number < 3 { CapsetId(number) } else { CapsetId::VENUS }))
    }
}

impl Arbitrary<'_> for Id {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        u.int_in_range(0..=3).map(Self)
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

impl From<Id> for RingIdx {
    fn from(Id(number): Id) -> Self {
        // The last ring is refused.
        Self(if number == 3 { Self::COUNT } else { number as u8 })
    }
}

/// The header of a request.
pub(crate) fn header(context: Context, fence: Option<&GuestFence>) -> Header {
    let ring_idx = fence.and_then(|fence| fence.ring_idx);
    let mut flags = HeaderFlags::empty();
    flags.set(HeaderFlags::FENCE, fence.is_some());
    flags.set(HeaderFlags::INFO_RING_IDX, ring_idx.is_some());
    Header {
        command: CommandType(0),
        flags,
        fence_id: FenceId(fence.map_or(0, |fence| fence.id.0.into())),
        ctx_id: context.0,
        ring_idx: ring_idx.map_or(RingIdx::CONTEXT, Into::into),
    }
}

impl Request {
    /// Returns the command as the decoder would.
    pub(crate) fn command(&self) -> Command<'static> {
        match *self {
            Self::CtxCreate { capset: Capset(capset_id) } => {
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
            Self::Unref(id) => Command::ResourceUnref { resource_id: id.into() },
            Self::Map { resource, ref offset } => {
                let offset = match offset {
                    Offset::Pages(count) => PAGE * u64::from(count.0),
                    Offset::HalfPages(count) => PAGE / 2 * u64::from(*count),
                    Offset::Any(offset) => *offset,
                };
                Command::ResourceMapBlob { resource_id: resource.into(), offset }
            }
            Self::Unmap(id) => Command::ResourceUnmapBlob { resource_id: id.into() },
            Self::Bookkeeping(bookkeeping) => bookkeeping.command(),
        }
    }
}

impl Bookkeeping {
    fn command(self) -> Command<'static> {
        match self {
            Self::Create2d(id) => {
                Command::ResourceCreate2d { resource_id: id.into(), format: 1, width: 1, height: 1 }
            }
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
