//! A resource: the place of its memory, and its state (VIRTIO 1.3, 5.7.6.8).

use super::Shown;
use super::quota::Owner;
use config::MemoryId;
use protocol::ids::ContextId;
use protocol::virtio_gpu::{Command, Header, MapCache};

/// A resource.
#[derive(Debug)]
pub(super) struct Resource<T> {
    /// Bytes, for a blob; 0 for a 2D resource.
    pub size: u64,
    pub kind: Kind<T>,
    /// The owner that it counts for.
    pub owner: Owner,
    /// Assigned by RESOURCE_ASSIGN_UUID.
    pub(super) uuid: Option<[u8; 16]>,
}

/// The place of a resource's memory.
#[derive(Debug)]
pub(super) enum Kind<T> {
    /// In the guest.
    Guest,
    /// In the host.
    HostBlob(HostBlob<T>),
}

/// Host memory of a resource.
#[derive(Debug)]
pub(super) struct HostBlob<T> {
    pub state: HostBlobState<T>,
    pub mappable: bool,
    /// Offset in the host-visible region, if mapped.
    pub mapped: Option<u64>,
    /// The counted memory it shows.
    pub memory: Option<MemoryId>,
}

#[derive(Debug)]
pub(super) enum HostBlobState<T> {
    /// The worker of `creator` has not answered yet.
    Pending { creator: ContextId, create: Option<(Header, T)>, waiting: Vec<(Header, Command<'static>, T)> },
    /// Shared memory.
    Shmem,
    /// Exported by the worker of this context, which may reuse the memory once it is mapped nowhere; without a context if it may still be mapped.
    Exported(MapCache, Option<ContextId>),
    /// Exported by the worker of this context, whose driver may free it, or end with it, only when it is mapped nowhere.
    Lent(MapCache, ContextId),
    /// The worker that lent it is gone. The guest may not know that it is not mapped any more.
    Revoked { seems_mapped: bool },
}

impl<T> HostBlob<T> {
    /// Notes that its memory is there.
    pub(super) fn is_ready(&self) -> bool {
        !matches!(self.state, HostBlobState::Pending { .. })
    }

    /// Returns the view of it that a worker is shown.
    pub(super) fn shown(&self) -> Shown {
        match self.state {
            HostBlobState::Pending { .. } => Shown::Expected,
            HostBlobState::Shmem => Shown::SharedMemory,
            HostBlobState::Exported(..) => {
                Shown::DeviceMemory { mappable: self.mappable, memory: self.memory }
            }
            // No other context may import it.
            HostBlobState::Lent(..) | HostBlobState::Revoked { .. } => {
                Shown::DeviceMemory { mappable: self.mappable, memory: None }
            }
        }
    }

    /// The context whose worker lends it, and the lent piece.
    pub(super) fn lent(&self) -> Option<(ContextId, MemoryId)> {
        match self.state {
            HostBlobState::Lent(_, lender) => Some((lender, self.memory?)),
            _ => None,
        }
    }

    /// The context whose worker exported it, and the piece.
    pub(super) fn exported(&self) -> Option<(ContextId, MemoryId)> {
        match self.state {
            HostBlobState::Exported(_, creator) => Some((creator?, self.memory?)),
            _ => None,
        }
    }

    /// The counted memory it shows.
    pub(super) fn memory(&self) -> Option<MemoryId> {
        self.memory
    }

    /// Returns whether it counts as shared memory of the VM.
    pub(super) fn is_shmem(&self) -> bool {
        matches!(self.state, HostBlobState::Shmem)
    }
}

impl<T> Resource<T> {
    /// A new resource.
    pub(super) fn new(size: u64, kind: Kind<T>, owner: Owner) -> Self {
        Self { size, kind, owner, uuid: None }
    }

    /// The context whose worker is to export it, and the number of requests that wait for that.
    pub(super) fn awaits_export(&self) -> Option<(ContextId, usize)> {
        match &self.kind {
            Kind::HostBlob(HostBlob {
                state: HostBlobState::Pending { creator, create, waiting }, ..
            }) => Some((*creator, usize::from(create.is_some()) + waiting.len())),
            _ => None,
        }
    }

    /// The host keeps memory for it.
    pub(super) fn holds_blob(&self) -> bool {
        matches!(&self.kind, Kind::HostBlob(blob) if blob.is_ready())
    }

    /// Returns the view of it that a worker is shown: nothing of memory in the guest.
    pub(super) fn shown(&self) -> Option<Shown> {
        match &self.kind {
            Kind::Guest => None,
            Kind::HostBlob(blob) => Some(blob.shown()),
        }
    }
}
