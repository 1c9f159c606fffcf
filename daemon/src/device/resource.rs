//! Resources (VIRTIO 1.3, 5.7.6.8): their table and what holds for all kinds of them.
//!
//! Resources with guest memory, 2D or blob, are bookkeeping: no scanout is ever connected, so nobody looks at their contents.

use super::quota::Owner;
use super::{Device, Effects, GuestError, Shown};
use crate::config::MemoryId;
use protocol::ids::{ContextId, ResourceId};
use protocol::virtio_gpu::{Command, Header, MapCache, Response};

/// A resource.
#[derive(Debug)]
pub(super) struct Resource<T> {
    /// Bytes, for a blob; 0 for a 2D resource.
    pub size: u64,
    pub kind: Kind<T>,
    /// Whom it counts for.
    pub owner: Owner,
    /// Assigned by RESOURCE_ASSIGN_UUID.
    uuid: Option<[u8; 16]>,
}

/// Where a resource's memory is.
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
    /// Exported by the worker of this context, which may use the memory for something else once it is mapped nowhere; by none if it may
    /// still be mapped.
    Exported(MapCache, Option<ContextId>),
    /// Exported by the worker of this context, whose driver may free it, or end with it, only when it is mapped nowhere.
    Lent(MapCache, ContextId),
    /// The worker that lent it is gone. The guest may not know that it is not mapped any more.
    Revoked { seems_mapped: bool },
}

impl<T> HostBlob<T> {
    /// Its memory is there.
    pub(super) fn is_ready(&self) -> bool {
        !matches!(self.state, HostBlobState::Pending { .. })
    }

    /// What a worker is shown of it.
    pub(super) fn shown(&self) -> Shown {
        match self.state {
            HostBlobState::Pending { .. } => Shown::Expected,
            HostBlobState::Shmem => Shown::SharedMemory,
            HostBlobState::Exported(..) => {
                Shown::DeviceMemory { mappable: self.mappable, memory: self.memory }
            }
            // For nobody else to import.
            HostBlobState::Lent(..) | HostBlobState::Revoked { .. } => {
                Shown::DeviceMemory { mappable: self.mappable, memory: None }
            }
        }
    }

    /// The context whose worker lends it, and what it lends.
    pub(super) fn lent(&self) -> Option<(ContextId, MemoryId)> {
        match self.state {
            HostBlobState::Lent(_, lender) => Some((lender, self.memory?)),
            _ => None,
        }
    }

    /// The context whose worker exported it, and what.
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

    /// It counts as shared memory of the VM.
    pub(super) fn is_shmem(&self) -> bool {
        matches!(self.state, HostBlobState::Shmem)
    }
}

impl<T> Resource<T> {
    /// A new resource.
    pub(super) fn new(size: u64, kind: Kind<T>, owner: Owner) -> Self {
        Self { size, kind, owner, uuid: None }
    }

    /// The host keeps memory for it.
    pub(super) fn holds_blob(&self) -> bool {
        matches!(&self.kind, Kind::HostBlob(blob) if blob.is_ready())
    }

    /// What a worker is shown of it: nothing of memory in the guest.
    pub(super) fn shown(&self) -> Option<Shown> {
        match &self.kind {
            Kind::Guest => None,
            Kind::HostBlob(blob) => Some(blob.shown()),
        }
    }
}

impl<T> Device<T> {
    /// Checks that a resource may be created under this id.
    pub(super) fn check_new_resource(&self, resource_id: ResourceId) -> Result<(), GuestError> {
        if self.resources.contains_key(&resource_id) {
            return Err(GuestError::ResourceExists(resource_id));
        }
        Ok(())
    }

    /// Adds a resource that [`Self::check_new_resource`] allowed.
    pub(super) fn add_resource(
        &mut self,
        resource_id: ResourceId,
        resource: Resource<T>,
    ) -> Result<(), GuestError> {
        self.quotas.resources.take(resource.owner, 1).map_err(GuestError::Limit)?;
        self.resources.insert(resource_id, resource);
        Ok(())
    }

    /// Takes a resource out of the table.
    pub(super) fn remove_resource(&mut self, resource_id: ResourceId) -> Option<Resource<T>> {
        let resource = self.resources.remove(&resource_id)?;
        self.quotas.resources.give_back(resource.owner, 1);
        Some(resource)
    }

    pub(super) fn check_resource(&self, resource_id: ResourceId) -> Result<Response, GuestError> {
        if !self.resources.contains_key(&resource_id) {
            return Err(GuestError::UnknownResource(resource_id));
        }
        Ok(Response::OkNodata)
    }

    pub(super) fn resource_create_2d(&mut self, resource_id: ResourceId) -> Result<Response, GuestError> {
        self.check_new_resource(resource_id)?;
        self.add_resource(resource_id, Resource::new(0, Kind::Guest, Owner::default()))?;
        Ok(Response::OkNodata)
    }

    pub(super) fn resource_unref<E: Effects<Ticket = T>>(
        &mut self,
        resource_id: ResourceId,
        effects: &mut E,
    ) -> Result<Response, GuestError> {
        self.check_resource(resource_id)?;
        // The guest reuses the range once this is answered.
        let unmapped = self.unmap(resource_id, effects);
        self.forget_resource(resource_id, effects);
        unmapped.map(|_| Response::OkNodata)
    }

    /// Removes an unmapped resource from every table.
    pub(super) fn forget_resource<E: Effects<Ticket = T>>(
        &mut self,
        resource_id: ResourceId,
        effects: &mut E,
    ) {
        let Some(resource) = self.remove_resource(resource_id) else { return };
        self.scanouts.forget(resource_id);
        if resource.holds_blob() {
            self.detach_everywhere(resource_id, effects);
            effects.drop_blob(resource_id);
            if let Kind::HostBlob(blob) = &resource.kind {
                self.tell_gone(blob, effects);
                if let Some(memory) = blob.memory() {
                    self.hide_piece(memory, effects);
                }
            }
        } else {
            for context in self.contexts.values_mut() {
                context.detach(resource_id);
            }
        }
        if let Kind::HostBlob(blob) = &resource.kind
            && blob.is_shmem()
        {
            self.quotas.shmem_bytes.give_back(resource.owner, resource.size);
        }
    }

    /// Tells the worker whose memory a blob showed. Memory that is not lent may have been given to others.
    fn tell_gone<E: Effects<Ticket = T>>(&self, blob: &HostBlob<T>, effects: &mut E) {
        if let Some((creator, memory)) =
            blob.exported().filter(|(creator, memory)| self.is_its_own(*creator, *memory))
        {
            effects.blob_gone(creator, memory);
        }
        if let Some((lender, memory)) = blob.lent() {
            effects.blob_gone(lender, memory);
        }
    }

    pub(super) fn resource_assign_uuid<E: Effects<Ticket = T>>(
        &mut self,
        resource_id: ResourceId,
        effects: &mut E,
    ) -> Result<Response, GuestError> {
        let resource =
            self.resources.get_mut(&resource_id).ok_or(GuestError::UnknownResource(resource_id))?;
        if let Some(uuid) = resource.uuid {
            return Ok(Response::OkResourceUuid(uuid));
        }
        let mut uuid = effects.random()?;
        // RFC 9562, 5.4: version 4, variant 10.
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        resource.uuid = Some(uuid);
        Ok(Response::OkResourceUuid(uuid))
    }
}
