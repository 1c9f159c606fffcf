//! The table of resources (VIRTIO 1.3, 5.7.6.8), and the rules for all kinds of resources.
//!
//! Resources with guest memory, 2D or blob, are bookkeeping: no scanout is ever connected, so no display shows their contents.

use super::quota::Owner;
use super::resource::{HostBlob, Kind, Resource};
use super::{Device, Effects, GuestError};
use protocol::ids::{ResourceId, ScanoutId};
use protocol::virtio_gpu::{DisplayMode, Rect, Response};

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
        // The guest may use the range again once this command is answered.
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

    /// Tells the worker whose memory a blob showed that the blob is gone. Memory that is not lent may have been given to other workers.
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

/// Scanouts: none is ever connected, so the resources that a driver shows on them are only noted.
impl<T> Device<T> {
    pub(super) fn get_display_info(&self) -> Response {
        let off = DisplayMode { r: Rect { x: 0, y: 0, width: 0, height: 0 }, enabled: false };
        Response::OkDisplayInfo(vec![off; self.scanouts.shown.len()])
    }

    pub(super) fn set_scanout(
        &mut self,
        scanout_id: ScanoutId,
        resource_id: Option<ResourceId>,
    ) -> Result<Response, GuestError> {
        let scanout = self.scanouts.get(scanout_id)?;
        if let Some(resource_id) = resource_id
            && !self.resources.contains_key(&resource_id)
        {
            return Err(GuestError::UnknownResource(resource_id));
        }
        *scanout = resource_id;
        Ok(Response::OkNodata)
    }

    pub(super) fn move_cursor(&mut self, scanout_id: ScanoutId) -> Result<Response, GuestError> {
        self.scanouts.get(scanout_id)?;
        Ok(Response::OkNodata)
    }
}
