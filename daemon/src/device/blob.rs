//! Host blobs: shared memory that the device makes (`blob_id` 0) and memory objects that a worker exports (VIRTIO 1.3, 5.7.6.10).
//!
//! The device asks a worker for an export, and the worker answers later. Until then, commands about the blob's memory wait, in their order; other
//! contexts to which the blob is attached are told to expect it, because their next commands may name it.

use super::command::{BlobRequest, Outcome};
use super::quota::Owner;
use super::resource::{HostBlob, HostBlobState as State, Kind, Resource};
use super::{Device, Effects, GuestError, Shown};
use config::MemoryId;
use protocol::ids::{BlobId, ContextId, ResourceId};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command, Header, MapCache, Response};

impl<T> Device<T> {
    pub(super) fn resource_create_blob<E: Effects<Ticket = T>>(
        &mut self,
        header: &Header,
        request: BlobRequest,
        effects: &mut E,
    ) -> Result<Outcome, GuestError> {
        self.check_new_resource(request.resource_id)?;
        match (request.blob_mem, request.blob_id) {
            (BlobMem::Host3dGuest, _) => Err(GuestError::Invalid("blob_mem")),
            (BlobMem::Guest, _) => {
                let owner = self.owner(header.context());
                let resource = Resource::new(request.size, Kind::Guest, owner);
                self.add_resource(request.resource_id, resource)?;
                Ok(Outcome::Answer(Response::OkNodata))
            }
            (BlobMem::Host3d, BlobId(0)) => self.create_shmem(header, request, effects),
            (BlobMem::Host3d, _) => self.create_export(header, request, effects),
        }
    }

    fn create_shmem<E: Effects<Ticket = T>>(
        &mut self,
        header: &Header,
        request: BlobRequest,
        effects: &mut E,
    ) -> Result<Outcome, GuestError> {
        let ctx_id = self.venus_context(header)?;
        let BlobRequest { resource_id, size, .. } = request;
        if size > self.options.limits.shmem_blob_bytes {
            return Err(GuestError::Limit("shmem_blob_bytes"));
        }
        let owner = self.owner(Some(ctx_id));
        self.quotas.shmem_bytes.take(owner, size).map_err(GuestError::Limit)?;
        let added = self.add_blob(request, State::Shmem, owner);
        let created = added.and_then(|()| {
            effects.create_shmem(resource_id, size).map_err(|e| {
                self.remove_resource(resource_id);
                e.into()
            })
        });
        if let Err(error) = created {
            self.quotas.shmem_bytes.give_back(owner, size);
            return Err(error);
        }
        // The creating context sees the resource at once: its worker may need it before CTX_ATTACH_RESOURCE.
        if let Some(context) = self.contexts.get_mut(&ctx_id) {
            context.attach(resource_id);
            effects.attach(ctx_id, resource_id, size, Shown::SharedMemory);
        }
        Ok(Outcome::Answer(Response::OkNodata))
    }

    fn create_export<E: Effects<Ticket = T>>(
        &mut self,
        header: &Header,
        request: BlobRequest,
        effects: &mut E,
    ) -> Result<Outcome, GuestError> {
        let creator = self.venus_context(header)?;
        let BlobRequest { resource_id, blob_id, size, blob_flags, .. } = request;
        let owner = self.owner(Some(creator));
        self.add_blob(request, State::Pending { creator, create: None, waiting: Vec::new() }, owner)?;
        let mappable = blob_flags.contains(BlobFlags::MAPPABLE);
        if let Err(failed) = effects.export_blob(creator, resource_id, blob_id, size, mappable) {
            self.remove_resource(resource_id);
            return Err(failed.into());
        }
        if let Some(context) = self.contexts.get_mut(&creator) {
            context.export_begins(resource_id);
        }
        Ok(Outcome::AwaitExport { resource_id })
    }

    fn add_blob(&mut self, request: BlobRequest, state: State<T>, owner: Owner) -> Result<(), GuestError> {
        let mappable = request.blob_flags.contains(BlobFlags::MAPPABLE);
        let blob = HostBlob { state, mappable, mapped: None, memory: None };
        self.add_resource(request.resource_id, Resource::new(request.size, Kind::HostBlob(blob), owner))
    }

    /// Keeps the ticket of the RESOURCE_CREATE_BLOB whose export is pending.
    pub(super) fn await_export(&mut self, resource_id: ResourceId, header: &Header, ticket: T) {
        if let Some(State::Pending { create, .. }) = self.blob_mut(resource_id).map(|blob| &mut blob.state) {
            *create = Some((*header, ticket));
        }
    }

    /// Keeps a command that has to wait for a pending export; returns the ticket if the command need not wait.
    ///
    /// The export attaches the resource to its creator, so the creator's attachments wait. Other contexts can be told at once.
    pub(super) fn defer(&mut self, header: &Header, command: &Command<'_>, ticket: T) -> Option<T> {
        let (resource_id, command, for_all) = match *command {
            Command::ResourceUnref { resource_id } => {
                (resource_id, Command::ResourceUnref { resource_id }, true)
            }
            Command::ResourceMapBlob { resource_id, offset } => {
                (resource_id, Command::ResourceMapBlob { resource_id, offset }, true)
            }
            Command::ResourceUnmapBlob { resource_id } => {
                (resource_id, Command::ResourceUnmapBlob { resource_id }, true)
            }
            Command::CtxAttachResource { resource_id } => {
                (resource_id, Command::CtxAttachResource { resource_id }, false)
            }
            Command::CtxDetachResource { resource_id } => {
                (resource_id, Command::CtxDetachResource { resource_id }, false)
            }
            _ => return Some(ticket),
        };
        match self.blob_mut(resource_id).map(|blob| &mut blob.state) {
            Some(State::Pending { creator, waiting, .. })
                if for_all || header.context() == Some(*creator) =>
            {
                waiting.push((*header, command, ticket));
                None
            }
            _ => Some(ticket),
        }
    }

    /// Returns the bytes of the blob that this context's worker was asked to export, and whether it is mappable, if it has not answered yet.
    pub(crate) fn pending_export(&self, ctx_id: ContextId, resource_id: ResourceId) -> Option<(u64, bool)> {
        let resource = self.resources.get(&resource_id)?;
        match &resource.kind {
            Kind::HostBlob(HostBlob { state: State::Pending { creator, .. }, mappable, .. })
                if *creator == ctx_id =>
            {
                Some((resource.size, *mappable))
            }
            _ => None,
        }
    }

    /// A worker exported the blob of a [`Self::pending_export`]. The blob's memory is kept under `resource_id`, and is the piece `memory` that the
    /// worker holds. [`Effects::blob_gone`] will tell the worker when it may free the memory, if the memory is `lent`, or reuse it.
    pub(crate) fn blob_exported<E: Effects<Ticket = T>>(
        &mut self,
        resource_id: ResourceId,
        cache: MapCache,
        memory: Option<MemoryId>,
        lent: bool,
        effects: &mut E,
    ) {
        let Some(blob) = self.blob_mut(resource_id) else { return };
        let State::Pending { creator, .. } = blob.state else { return };
        let state = if lent { State::Lent(cache, creator) } else { State::Exported(cache, Some(creator)) };
        let State::Pending { create, waiting, .. } = std::mem::replace(&mut blob.state, state) else {
            return;
        };
        blob.memory = memory;
        if let Some(memory) = memory {
            self.show_piece(memory);
        }
        self.show_to_attached(resource_id, effects);
        let mut has_successor = false;
        if let Some(context) = self.contexts.get_mut(&creator) {
            context.export_ends(resource_id);
            context.attach(resource_id);
            if lent {
                context.lends(resource_id);
            }
            has_successor = context.successor.is_some();
        }
        if has_successor {
            self.show_export(creator, resource_id, effects);
        }
        if let Some((_, ticket)) = create {
            effects.respond(ticket, Response::OkNodata);
        }
        for (header, command, ticket) in waiting {
            self.handle(&header, &command, ticket, effects);
        }
    }

    /// Shows a successor a blob that its predecessor has just exported, and counts the blob's piece as given to the successor.
    fn show_export<E: Effects<Ticket = T>>(
        &mut self,
        creator: ContextId,
        resource_id: ResourceId,
        effects: &mut E,
    ) {
        let Some(resource) = self.resources.get(&resource_id) else { return };
        let Some(shown) = resource.shown() else { return };
        effects.attach_to_successor(creator, resource_id, resource.size, shown);
        if let Some(memory) = shown.memory() {
            self.give_successor(creator, memory);
        }
    }

    /// A worker could not export the blob of a [`Self::pending_export`], or the device process refused its export.
    pub(crate) fn blob_refused<E: Effects<Ticket = T>>(&mut self, resource_id: ResourceId, effects: &mut E) {
        if self.blob_mut(resource_id).is_none_or(|blob| blob.is_ready()) {
            return;
        }
        let Some(Resource { kind: Kind::HostBlob(blob), .. }) = self.remove_resource(resource_id) else {
            return;
        };
        self.scanouts.forget(resource_id);
        let State::Pending { creator, create, waiting } = blob.state else { return };
        if let Some(context) = self.contexts.get_mut(&creator) {
            context.export_ends(resource_id);
        }
        self.detach_everywhere(resource_id, effects);
        if let Some((header, ticket)) = create {
            self.refuse(&header, &GuestError::Host, ticket, effects);
        }
        for (header, command, ticket) in waiting {
            self.handle(&header, &command, ticket, effects);
        }
    }

    pub(super) fn resource_map_blob<E: Effects<Ticket = T>>(
        &mut self,
        resource_id: ResourceId,
        offset: u64,
        effects: &mut E,
    ) -> Result<Outcome, GuestError> {
        let resource =
            self.resources.get_mut(&resource_id).ok_or(GuestError::UnknownResource(resource_id))?;
        let (size, owner) = (resource.size, resource.owner);
        let Kind::HostBlob(blob) = &mut resource.kind else {
            return Err(GuestError::Invalid("mapping of a resource without host memory"));
        };
        let cache = match &blob.state {
            State::Pending { .. } => return Err(GuestError::UnknownResource(resource_id)),
            State::Shmem => MapCache::Cached,
            State::Exported(cache, _) | State::Lent(cache, _) => *cache,
            State::Revoked { .. } => return Err(GuestError::Host),
        };
        if !blob.mappable {
            return Err(GuestError::Invalid("mapping of a blob that is not mappable"));
        }
        if blob.mapped.is_some() {
            return Err(GuestError::Invalid("second mapping of a blob"));
        }
        self.window.check(offset, size)?;
        self.quotas.take_map(owner, size)?;
        if let Err(failed) = effects.map_blob(resource_id, offset, size) {
            self.quotas.give_back_map(owner, size);
            return Err(failed.into());
        }
        blob.mapped = Some(offset);
        self.window.insert(offset, size, resource_id);
        let response = Response::OkMapInfo(cache);
        match self.starts.is_under_way(owner) {
            true => Ok(Outcome::AwaitStart { owner, response }),
            false => Ok(Outcome::Answer(response)),
        }
    }

    pub(super) fn resource_unmap_blob<E: Effects<Ticket = T>>(
        &mut self,
        resource_id: ResourceId,
        effects: &mut E,
    ) -> Result<Response, GuestError> {
        self.check_resource(resource_id)?;
        if let Some(State::Revoked { seems_mapped: seems @ true }) =
            self.blob_mut(resource_id).map(|blob| &mut blob.state)
        {
            *seems = false;
            return Ok(Response::OkNodata);
        }
        if !self.unmap(resource_id, effects)? {
            return Err(GuestError::Invalid("unmapping of what is not mapped"));
        }
        Ok(Response::OkNodata)
    }

    /// Unmaps a resource if it is mapped. Returns true if it was.
    pub(super) fn unmap<E: Effects<Ticket = T>>(
        &mut self,
        resource_id: ResourceId,
        effects: &mut E,
    ) -> Result<bool, GuestError> {
        let Some(resource) = self.resources.get_mut(&resource_id) else { return Ok(false) };
        let (size, owner) = (resource.size, resource.owner);
        let Kind::HostBlob(blob) = &mut resource.kind else { return Ok(false) };
        let Some(offset) = blob.mapped.take() else { return Ok(false) };
        self.window.remove(offset);
        self.quotas.give_back_map(owner, size);
        let unmapped = effects.unmap_blob(resource_id, offset, size);
        if unmapped.is_err() && blob.lent().is_some() {
            // The blob may still be mapped, so its memory is never given back.
            blob.state = State::Revoked { seems_mapped: false };
        } else if unmapped.is_err()
            && let State::Exported(_, creator) = &mut blob.state
        {
            *creator = None;
        }
        unmapped?;
        Ok(true)
    }

    /// A worker is gone or about to end, so the frontend must not have its memory mapped any more: unmaps these resources.
    pub(super) fn revoke<E: Effects<Ticket = T>>(
        &mut self,
        resources: impl IntoIterator<Item = ResourceId>,
        effects: &mut E,
    ) {
        for resource_id in resources {
            // If that fails, the performer of effects has logged the failure, and keeps the memory if it can.
            let seems_mapped = !matches!(self.unmap(resource_id, effects), Ok(false));
            let Some(blob) = self.blob_mut(resource_id) else { continue };
            let lent = blob.lent();
            let memory = blob.memory.take();
            blob.state = State::Revoked { seems_mapped };
            effects.revoke_blob(resource_id);
            if let Some((lender, memory)) = lent {
                effects.blob_gone(lender, memory);
            }
            if let Some(memory) = memory {
                self.hide_piece(memory, effects);
            }
        }
    }

    fn blob_mut(&mut self, resource_id: ResourceId) -> Option<&mut HostBlob<T>> {
        match &mut self.resources.get_mut(&resource_id)?.kind {
            Kind::HostBlob(blob) => Some(blob),
            Kind::Guest => None,
        }
    }
}
