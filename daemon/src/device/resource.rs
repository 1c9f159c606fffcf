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
    /// The owner for which the resource counts.
    pub owner: Owner,
    /// The UUID that RESOURCE_ASSIGN_UUID assigned.
    pub(super) uuid: Option<[u8; 16]>,
}

/// The place of a resource's memory.
#[derive(Debug)]
pub(super) enum Kind<T> {
    /// The memory is in the guest.
    Guest,
    /// The memory is in the host.
    HostBlob(HostBlob<T>),
}

/// Host memory of a resource.
#[derive(Debug)]
pub(super) struct HostBlob<T> {
    pub state: HostBlobState<T>,
    pub mappable: bool,
    /// The offset in the host-visible region, if the blob is mapped.
    pub mapped: Option<u64>,
    /// The counted memory it shows.
    pub memory: Option<MemoryId>,
}

#[derive(Debug)]
pub(super) enum HostBlobState<T> {
    /// The worker of `creator` has not answered the export yet.
    Pending { creator: ContextId, create: Option<(Header, T)>, waiting: Vec<(Header, Command<'static>, T)> },
    /// Shared memory.
    Shmem,
    /// The worker of this context exported the memory, and may reuse it once it is mapped nowhere. There is no context if it may still be mapped.
    Exported(MapCache, Option<ContextId>),
    /// The worker of this context exported the memory. Its driver may free the memory, or end with it, only when the memory is mapped nowhere.
    Lent(MapCache, ContextId),
    /// The worker that lent the memory is gone. The guest may not know that the memory is not mapped any more.
    Revoked { seems_mapped: bool },
}

impl<T> HostBlob<T> {
    /// Returns whether the blob's memory is there.
    pub(super) fn is_ready(&self) -> bool {
        !matches!(self.state, HostBlobState::Pending { .. })
    }

    /// Returns the view of the blob that a worker is shown.
    pub(super) fn shown(&self) -> Shown {
        match self.state {
            HostBlobState::Pending { .. } => Shown::Expected,
            HostBlobState::Shmem => Shown::SharedMemory,
            HostBlobState::Exported(..) => {
                Shown::DeviceMemory { mappable: self.mappable, memory: self.memory }
            }
            // No other context may import the memory.
            HostBlobState::Lent(..) | HostBlobState::Revoked { .. } => {
                Shown::DeviceMemory { mappable: self.mappable, memory: None }
            }
        }
    }

    /// Returns the context whose worker lends the memory, and the lent piece.
    pub(super) fn lent(&self) -> Option<(ContextId, MemoryId)> {
        match self.state {
            HostBlobState::Lent(_, lender) => Some((lender, self.memory?)),
            _ => None,
        }
    }

    /// Returns the context whose worker exported the memory, and the piece.
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

    /// Returns whether the blob counts as shared memory of the VM.
    pub(super) fn is_shmem(&self) -> bool {
        matches!(self.state, HostBlobState::Shmem)
    }
}

impl<T> Resource<T> {
    /// Makes a new resource.
    pub(super) fn new(size: u64, kind: Kind<T>, owner: Owner) -> Self {
        Self { size, kind, owner, uuid: None }
    }

    /// Returns the context whose worker is to export the resource, and the number of requests that wait for the export.
    pub(super) fn awaits_export(&self) -> Option<(ContextId, usize)> {
        match &self.kind {
            Kind::HostBlob(HostBlob {
                state: HostBlobState::Pending { creator, create, waiting }, ..
            }) => Some((*creator, usize::from(create.is_some()) + waiting.len())),
            _ => None,
        }
    }

    /// Returns whether the host keeps memory for the resource.
    pub(super) fn holds_blob(&self) -> bool {
        matches!(&self.kind, Kind::HostBlob(blob) if blob.is_ready())
    }

    /// Returns the view of the resource that a worker is shown; none if the memory is in the guest.
    pub(super) fn shown(&self) -> Option<Shown> {
        match &self.kind {
            Kind::Guest => None,
            Kind::HostBlob(blob) => Some(blob.shown()),
        }
    }
}
