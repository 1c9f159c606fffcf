//! Contexts and their fences (VIRTIO 1.3, 5.7.6.9).
//!
//! A context with the Venus capability set has a worker; one without a capability set is an empty shell for clients in the guest's kernel.
//! A fence is always answered: when the worker reports it, or at once when the context is lost or destroyed.

use super::command::Outcome;
use super::context::{Context, ContextState, Obstacle, Successor};
use super::quota::Owner;
use super::resource::{Kind, Resource};
use super::{Device, Effects, GuestError};
use config::MemoryId;
use protocol::ids::{CapsetId, ContextId, FenceId, ResourceId, RingIdx};
use protocol::virtio_gpu::{Fence, FenceTimeline, Header, Response};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::cmp::Reverse;
use std::hash::BuildHasher;

impl<T> Device<T> {
    pub(super) fn ctx_create<E: Effects<Ticket = T>>(
        &mut self,
        header: &Header,
        capset_id: CapsetId,
        debug_name: &[u8],
        effects: &mut E,
    ) -> Result<Response, GuestError> {
        let ctx_id = header.context().ok_or(GuestError::UnknownContext)?;
        if self.contexts.contains_key(&ctx_id) {
            return Err(GuestError::ContextExists(ctx_id));
        }
        let state = match capset_id {
            CapsetId(0) => ContextState::Shell,
            CapsetId::VENUS => ContextState::Alive,
            _ => return Err(GuestError::Invalid("capability set")),
        };
        let program = Owner(FxBuildHasher.hash_one(debug_name));
        self.quotas.contexts.take(program, 1).map_err(GuestError::Limit)?;
        let owner = Owner(self.next_owner);
        self.next_owner += 1;
        if state == ContextState::Alive
            && let Err(failed) = effects.start_worker(ctx_id, debug_name, owner.0)
        {
            self.quotas.contexts.give_back(program, 1);
            return Err(failed.into());
        }
        if state == ContextState::Alive {
            self.starts.begins(owner);
        }
        self.contexts.insert(ctx_id, Context::new(state, owner, program));
        Ok(Response::OkNodata)
    }

    pub(super) fn ctx_destroy<E: Effects<Ticket = T>>(
        &mut self,
        header: &Header,
        effects: &mut E,
    ) -> Result<Response, GuestError> {
        let ctx_id = header.context().ok_or(GuestError::UnknownContext)?;
        let mut context = self.contexts.remove(&ctx_id).ok_or(GuestError::UnknownContext)?;
        self.quotas.contexts.give_back(context.program, 1);
        self.waits_no_more(ctx_id);
        self.start_ends(context.owner, effects);
        self.drivers_end(context.owner, std::mem::take(&mut context.drivers));
        self.revoke(std::mem::take(&mut context.lending), effects);
        if context.has_worker() {
            effects.end_worker(ctx_id);
        }
        for ticket in context.signal_all() {
            effects.respond(ticket, Response::OkNodata);
        }
        for resource_id in context.exporting {
            self.blob_refused(resource_id, effects);
        }
        Ok(Response::OkNodata)
    }

    pub(super) fn ctx_attach_resource<E: Effects<Ticket = T>>(
        &mut self,
        header: &Header,
        resource_id: ResourceId,
        effects: &mut E,
    ) -> Result<Response, GuestError> {
        let ctx_id = header.context().ok_or(GuestError::UnknownContext)?;
        let resource = self.resources.get(&resource_id).ok_or(GuestError::UnknownResource(resource_id))?;
        let context = self.contexts.get_mut(&ctx_id).ok_or(GuestError::UnknownContext)?;
        if context.attach(resource_id)
            && context.has_worker()
            && let Some(shown) = resource.shown()
        {
            effects.attach(ctx_id, resource_id, resource.size, shown);
            if let Some(memory) = shown.memory() {
                self.give_piece(ctx_id, memory);
            }
        }
        Ok(Response::OkNodata)
    }

    pub(super) fn ctx_detach_resource<E: Effects<Ticket = T>>(
        &mut self,
        header: &Header,
        resource_id: ResourceId,
        effects: &mut E,
    ) -> Result<Response, GuestError> {
        let ctx_id = header.context().ok_or(GuestError::UnknownContext)?;
        let resource = self.resources.get(&resource_id).ok_or(GuestError::UnknownResource(resource_id))?;
        let context = self.contexts.get_mut(&ctx_id).ok_or(GuestError::UnknownContext)?;
        if context.detach(resource_id) && context.has_worker() && resource.shown().is_some() {
            effects.detach(ctx_id, resource_id);
        }
        Ok(Response::OkNodata)
    }

    /// Shows a resource as it is now to the contexts to which it is attached.
    pub(super) fn show_to_attached<E: Effects<Ticket = T>>(
        &mut self,
        resource_id: ResourceId,
        effects: &mut E,
    ) {
        let Some(resource) = self.resources.get(&resource_id) else { return };
        let Some(shown) = resource.shown() else { return };
        let mut given = Vec::new();
        for (ctx_id, context) in &self.contexts {
            if context.attached.contains(&resource_id) && context.has_worker() {
                effects.attach(*ctx_id, resource_id, resource.size, shown);
                given.push(*ctx_id);
            }
        }
        if let Some(memory) = shown.memory() {
            given.into_iter().for_each(|ctx_id| self.give_piece(ctx_id, memory));
        }
    }

    /// A resource goes away: no context sees or lends it any more, and others may get its id.
    pub(super) fn detach_everywhere<E: Effects<Ticket = T>>(
        &mut self,
        resource_id: ResourceId,
        effects: &mut E,
    ) {
        for (ctx_id, context) in &mut self.contexts {
            context.lends_no_more(resource_id);
            if context.detach(resource_id) && context.has_worker() {
                effects.detach(*ctx_id, resource_id);
            }
        }
    }

    pub(super) fn submit_3d<E: Effects<Ticket = T>>(
        &mut self,
        header: &Header,
        data: &[u8],
        effects: &mut E,
    ) -> Result<Outcome, GuestError> {
        let ctx_id = self.venus_context(header)?;
        // A fence that names no ring is passed once the stream is executed, and so is a fence of ring 0.
        let fence = header.fence().map(|Fence { timeline, fence_id }| match timeline {
            FenceTimeline::Global => (RingIdx::CONTEXT, fence_id),
            FenceTimeline::Ring(ring_idx) => (ring_idx, fence_id),
        });
        if fence.is_some_and(|(ring_idx, _)| ring_idx.0 >= RingIdx::COUNT) {
            return Err(GuestError::Invalid("ring_idx"));
        }
        effects.submit(ctx_id, data, fence)?;
        Ok(match fence {
            None => Outcome::Answer(Response::OkNodata),
            Some((ring_idx, fence_id)) => Outcome::AwaitFence { ctx_id, ring_idx, fence_id },
        })
    }

    /// Returns whether a resource is attached to a context.
    pub(crate) fn sees(&self, ctx_id: ContextId, resource_id: ResourceId) -> bool {
        self.contexts.get(&ctx_id).is_some_and(|context| context.attached.contains(&resource_id))
    }

    /// Returns the resources that a context sees, by the counted memory that they show.
    pub(crate) fn shown_memory(&self, ctx_id: ContextId) -> FxHashMap<MemoryId, ResourceId> {
        let attached = self.contexts.get(&ctx_id).into_iter().flat_map(|context| &context.attached);
        let shown = attached.filter_map(|resource_id| Some((self.memory_of(*resource_id)?, *resource_id)));
        shown.collect()
    }

    fn memory_of(&self, resource_id: ResourceId) -> Option<MemoryId> {
        match &self.resources.get(&resource_id)?.kind {
            Kind::HostBlob(blob) => blob.memory(),
            Kind::Guest => None,
        }
    }

    /// Returns the owner for which a context's requests count; requests without an existing context count for the guest's kernel.
    pub(super) fn owner(&self, ctx_id: Option<ContextId>) -> Owner {
        ctx_id.and_then(|ctx_id| self.contexts.get(&ctx_id)).map_or(Owner::default(), Context::owner)
    }

    /// Returns the context that a command names, if commands can be sent to it.
    pub(super) fn venus_context(&self, header: &Header) -> Result<ContextId, GuestError> {
        let ctx_id = header.context().ok_or(GuestError::UnknownContext)?;
        match self.contexts.get(&ctx_id).ok_or(GuestError::UnknownContext)?.state {
            ContextState::Shell => Err(GuestError::ShellContext(ctx_id)),
            ContextState::Alive => Ok(ctx_id),
            ContextState::Lost => Err(GuestError::ContextLost(ctx_id)),
        }
    }

    /// Returns the context whose worker owes most answers, and how many; none if no worker owes any. Of two that owe equally many, it is the older.
    pub(crate) fn owes_most(&self) -> Option<(ContextId, usize)> {
        let mut owed: FxHashMap<ContextId, usize> = FxHashMap::default();
        for (ctx_id, context) in self.contexts.iter().filter(|(_, context)| context.has_worker()) {
            owed.insert(*ctx_id, context.fences() + self.starts.waiting(context.owner));
        }
        for (creator, count) in self.resources.values().filter_map(Resource::awaits_export) {
            owed.entry(creator).and_modify(|owed| *owed += count);
        }
        let age = |ctx_id: &ContextId| Reverse(self.contexts.get(ctx_id).map(Context::owner));
        owed.into_iter().filter(|(_, count)| *count > 0).max_by_key(|(ctx_id, count)| (*count, age(ctx_id)))
    }

    /// A worker says that a fence is passed. Answers that fence and those before it on its timeline; ignores a fence that is
    /// not pending.
    pub(crate) fn fence_signalled<E: Effects<Ticket = T>>(
        &mut self,
        ctx_id: ContextId,
        ring_idx: RingIdx,
        fence_id: FenceId,
        effects: &mut E,
    ) {
        let Some(context) = self.contexts.get_mut(&ctx_id) else { return };
        for ticket in context.signal(ring_idx, fence_id) {
            effects.respond(ticket, Response::OkNodata);
        }
    }

    /// A context's worker has started, or nothing waits for its start any more: gives the answers that waited for it.
    pub(crate) fn worker_started<E: Effects<Ticket = T>>(&mut self, ctx_id: ContextId, effects: &mut E) {
        if let Some(owner) = self.contexts.get(&ctx_id).map(Context::owner) {
            self.start_ends(owner, effects);
        }
    }

    /// Gives all answers that wait for starts: the process that goes on with the device knows nothing of them.
    pub(crate) fn await_no_start<E: Effects<Ticket = T>>(&mut self, effects: &mut E) {
        self.starts.all().into_iter().for_each(|owner| self.start_ends(owner, effects));
    }

    fn start_ends<E: Effects<Ticket = T>>(&mut self, owner: Owner, effects: &mut E) {
        for (ticket, response) in self.starts.ends(owner) {
            effects.respond(ticket, response);
        }
    }

    /// Returns the fences of a context that are not passed, for each timeline in order.
    pub(crate) fn open_fences(&self, ctx_id: ContextId) -> Vec<(RingIdx, FenceId)> {
        self.contexts.get(&ctx_id).map(|context| context.open_fences().collect()).unwrap_or_default()
    }

    /// Has all memory unmapped that workers lend, because the workers are about to end.
    pub(crate) fn revoke_all<E: Effects<Ticket = T>>(&mut self, effects: &mut E) {
        let lending = self.contexts.values_mut().flat_map(|context| std::mem::take(&mut context.lending));
        let lending: Vec<_> = lending.collect();
        self.revoke(lending, effects);
    }

    /// A context's worker ended or gave up. Passes its fences and refuses its exports. Mapped memory stays mapped, except for memory that
    /// the worker lent.
    pub(crate) fn context_lost<E: Effects<Ticket = T>>(&mut self, ctx_id: ContextId, effects: &mut E) {
        let Some(context) = self.contexts.get_mut(&ctx_id) else { return };
        if context.state != ContextState::Alive {
            return;
        }
        context.state = ContextState::Lost;
        (context.successor, context.rests) = (None, false);
        let exporting = std::mem::take(&mut context.exporting);
        let lending = std::mem::take(&mut context.lending);
        let (owner, drivers) = (context.owner, std::mem::take(&mut context.drivers));
        for ticket in context.signal_all() {
            effects.respond(ticket, Response::OkNodata);
        }
        self.waits_no_more(ctx_id);
        self.start_ends(owner, effects);
        self.drivers_end(owner, drivers);
        self.revoke(lending, effects);
        for resource_id in exporting {
            self.blob_refused(resource_id, effects);
        }
    }
}

/// The hand-over of a context from its worker to a successor, which sees the same resources as the worker.
impl<T> Device<T> {
    /// Returns the obstacle to handing a context over, if there is one.
    pub(crate) fn obstacle(&self, ctx_id: ContextId) -> Option<Obstacle> {
        let Some(context) = self.contexts.get(&ctx_id) else { return Some(Obstacle::Unknown) };
        match context.state {
            ContextState::Shell => Some(Obstacle::Shell),
            ContextState::Lost => Some(Obstacle::Lost),
            ContextState::Alive if !context.lending.is_empty() => Some(Obstacle::Lends),
            ContextState::Alive => None,
        }
    }

    /// Returns whether a context's worker has been asked to export memory, and has not answered.
    pub(crate) fn is_exporting(&self, ctx_id: ContextId) -> bool {
        self.contexts.get(&ctx_id).is_some_and(|context| !context.exporting.is_empty())
    }

    /// The process of this number has a driver, and holds GPU memory for a context whose worker has no driver.
    pub(crate) fn driver_holds(&mut self, ctx_id: ContextId, number: u64) {
        if let Some(context) = self.contexts.get_mut(&ctx_id) {
            context.drivers.push(Owner(number));
        }
    }

    /// Returns a number for a successor, for [`Self::show_to_successor`] and [`Self::worker_ended`].
    pub(crate) fn successor_number(&mut self) -> u64 {
        let number = self.next_owner;
        self.next_owner += 1;
        number
    }

    /// Shows a successor the resources of its context. From now on it is shown the same resources as the context's worker.
    pub(crate) fn show_to_successor<E: Effects<Ticket = T>>(
        &mut self,
        ctx_id: ContextId,
        number: u64,
        effects: &mut E,
    ) {
        let Some(context) = self.contexts.get_mut(&ctx_id).filter(|context| context.has_worker()) else {
            return;
        };
        let owner = Owner(number);
        let (takes, credit, returned) = Default::default();
        context.successor = Some(Successor { owner, takes, credit, returned });
        for resource_id in &context.attached {
            let Some(resource) = self.resources.get(resource_id) else { continue };
            let Some(shown) = resource.shown() else { continue };
            effects.attach_to_successor(ctx_id, *resource_id, resource.size, shown);
            if let Some(memory) = shown.memory() {
                self.pieces.given_to_successor(memory, owner);
            }
        }
    }

    /// A context's worker rests: its waiting requests are kept until it goes on, or until a successor has the context.
    pub(crate) fn context_rests(&mut self, ctx_id: ContextId) {
        if let Some(context) = self.contexts.get_mut(&ctx_id) {
            context.rests = true;
        }
    }

    /// The hand-over of a context is called off: its worker goes on. The pieces that the successor was shown count until its process has ended.
    pub(crate) fn hand_over_ends<E: Effects<Ticket = T>>(&mut self, ctx_id: ContextId, effects: &mut E) {
        let Some(context) = self.contexts.get_mut(&ctx_id) else { return };
        context.successor = None;
        if std::mem::take(&mut context.rests) {
            self.ask_again(effects);
        }
    }
}
