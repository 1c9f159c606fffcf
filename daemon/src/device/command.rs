//! This file passes a command to its handler, and makes an answer of the handler's outcome.

use super::quota::Owner;
use super::{Device, Effects, GuestError};
use protocol::ids::{BlobId, CapsetId, ContextId, FenceId, ResourceId, RingIdx};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command, Header, Response};

/// The way a command goes on.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The command is done.
    Answer(Response),
    /// The command is done once the fence is passed.
    AwaitFence { ctx_id: ContextId, ring_idx: RingIdx, fence_id: FenceId },
    /// The command is done once the worker exported the resource.
    AwaitExport { resource_id: ResourceId },
    /// The command is done, and is answered once this owner's worker has started.
    AwaitStart { owner: Owner, response: Response },
}

/// The request of RESOURCE_CREATE_BLOB.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlobRequest {
    pub resource_id: ResourceId,
    pub blob_mem: BlobMem,
    pub blob_flags: BlobFlags,
    pub blob_id: BlobId,
    pub size: u64,
}

impl<T> Device<T> {
    /// Executes a command. Its ticket is answered now or later, by way of `effects`.
    pub(crate) fn handle<E: Effects<Ticket = T>>(
        &mut self,
        header: &Header,
        command: &Command<'_>,
        ticket: T,
        effects: &mut E,
    ) {
        let Some(ticket) = self.defer(header, command, ticket) else { return };
        match self.dispatch(header, command, effects) {
            Ok(Outcome::Answer(response)) => effects.respond(ticket, response),
            Ok(Outcome::AwaitFence { ctx_id, ring_idx, fence_id }) => {
                if let Some(context) = self.contexts.get_mut(&ctx_id) {
                    context.await_fence(ring_idx, fence_id, ticket);
                }
            }
            Ok(Outcome::AwaitExport { resource_id }) => self.await_export(resource_id, header, ticket),
            Ok(Outcome::AwaitStart { owner, response }) => self.starts.keep(owner, ticket, response),
            Err(error) => self.refuse(header, &error, ticket, effects),
        }
    }

    /// Answers a command with an error.
    pub(crate) fn refuse<E: Effects<Ticket = T>>(
        &self,
        header: &Header,
        error: &GuestError,
        ticket: T,
        effects: &mut E,
    ) {
        effects.refused(header, error);
        effects.respond(ticket, Response::Err(error.response()));
    }

    fn dispatch<E: Effects<Ticket = T>>(
        &mut self,
        header: &Header,
        command: &Command<'_>,
        effects: &mut E,
    ) -> Result<Outcome, GuestError> {
        let response = match *command {
            Command::GetDisplayInfo => Ok(self.get_display_info()),
            Command::ResourceCreate2d { resource_id, .. } => self.resource_create_2d(resource_id),
            Command::ResourceUnref { resource_id } => self.resource_unref(resource_id, effects),
            Command::SetScanout { scanout_id, resource_id, .. }
            | Command::SetScanoutBlob { scanout_id, resource_id, .. } => {
                self.set_scanout(scanout_id, resource_id)
            }
            Command::ResourceFlush { resource_id, .. }
            | Command::TransferToHost2d { resource_id, .. }
            | Command::ResourceAttachBacking { resource_id, .. }
            | Command::ResourceDetachBacking { resource_id } => self.check_resource(resource_id),
            Command::GetCapsetInfo { capset_index } => self.get_capset_info(capset_index),
            Command::GetCapset { capset_id, .. } => self.get_capset(capset_id),
            Command::GetEdid { .. } => Err(GuestError::Invalid("EDID request without its feature")),
            Command::ResourceAssignUuid { resource_id } => self.resource_assign_uuid(resource_id, effects),
            Command::ResourceCreateBlob { resource_id, blob_mem, blob_flags, blob_id, size, .. } => {
                let request = BlobRequest { resource_id, blob_mem, blob_flags, blob_id, size };
                return self.resource_create_blob(header, request, effects);
            }
            Command::CtxCreate { capset_id, debug_name } => {
                self.ctx_create(header, capset_id, debug_name, effects)
            }
            Command::CtxDestroy => self.ctx_destroy(header, effects),
            Command::CtxAttachResource { resource_id } => {
                self.ctx_attach_resource(header, resource_id, effects)
            }
            Command::CtxDetachResource { resource_id } => {
                self.ctx_detach_resource(header, resource_id, effects)
            }
            Command::Submit3d { data } => return self.submit_3d(header, data, effects),
            Command::ResourceMapBlob { resource_id, offset } => {
                return self.resource_map_blob(resource_id, offset, effects);
            }
            Command::ResourceUnmapBlob { resource_id } => self.resource_unmap_blob(resource_id, effects),
            Command::UpdateCursor { scanout_id, .. } | Command::MoveCursor { scanout_id } => {
                self.move_cursor(scanout_id)
            }
        };
        response.map(Outcome::Answer)
    }

    fn get_capset_info(&self, capset_index: u32) -> Result<Response, GuestError> {
        if capset_index != 0 {
            return Err(GuestError::Invalid("capset_index"));
        }
        let capset_max_size = u32::try_from(self.options.capset.len()).map_err(|_| GuestError::Host)?;
        Ok(Response::OkCapsetInfo { capset_id: CapsetId::VENUS, capset_max_version: 0, capset_max_size })
    }

    fn get_capset(&self, capset_id: CapsetId) -> Result<Response, GuestError> {
        if capset_id != CapsetId::VENUS {
            return Err(GuestError::Invalid("capset_id"));
        }
        Ok(Response::OkCapset(self.options.capset.clone()))
    }
}
