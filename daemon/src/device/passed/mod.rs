//! This file writes the device down for a device process of another program that serves the guest from then on, and builds it up there: contexts with
//! their open fences, resources, mappings, and the memory that counts for each. The guest notices nothing.

mod admission;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod samples;

use super::Device;
use super::context::{Context, ContextState};
use super::pieces::{Holdings, Piece, Waiting};
use super::quota::Owner;
use super::resource::{HostBlob, HostBlobState, Kind, Resource};
use config::MemoryId;
use protocol::ids::{ContextId, FenceId, ResourceId, RingIdx};
use protocol::virtio_gpu::MapCache;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A device, written down. `R` is the written form of a command's ticket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PassedDevice<R> {
    /// The offer of the device, which the guest has read.
    window_size: u64,
    capset: Vec<u8>,
    shown: Vec<Option<ResourceId>>,
    resources: Vec<PassedResource>,
    contexts: Vec<PassedContext<R>>,
    pieces: Vec<(MemoryId, Piece)>,
    holdings: Vec<(Owner, Holdings)>,
    waiting: Vec<Waiting>,
    away: Vec<Owner>,
    dying: Vec<(Owner, u64)>,
    next_owner: u64,
    next_piece: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PassedResource {
    id: ResourceId,
    size: u64,
    owner: Owner,
    uuid: Option<[u8; 16]>,
    /// The blob; none if the resource's memory is in the guest.
    blob: Option<PassedBlob>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PassedBlob {
    state: PassedBlobState,
    mappable: bool,
    mapped: Option<u64>,
    memory: Option<MemoryId>,
}

/// The states of a blob in which another process can take it over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum PassedBlobState {
    Shmem,
    Exported(MapCache, Option<ContextId>),
    Lent(MapCache, ContextId),
    Revoked { seems_mapped: bool },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PassedContext<R> {
    id: ContextId,
    state: ContextState,
    owner: Owner,
    program: Owner,
    attached: Vec<ResourceId>,
    timelines: Vec<(RingIdx, Vec<(FenceId, R)>)>,
    drivers: Vec<Owner>,
}

impl<T> Device<T> {
    /// Returns whether another process can take the device over now.
    ///
    /// # Errors
    ///
    /// The reason why another process cannot take it over now.
    pub(crate) fn may_pass_on(&self) -> Result<(), &'static str> {
        let is_handed_over = |context: &Context<T>| context.successor.is_some() || context.rests;
        if self.contexts.values().any(is_handed_over) {
            return Err("a context is being restarted or swapped");
        }
        self.resources.values().try_for_each(|resource| resource.passed_blob().map(drop))
    }

    /// Writes the device down, where [`Self::may_pass_on`] allows that. `note` writes a command's ticket down, or returns none if the ticket is void.
    ///
    /// # Errors
    ///
    /// The name of the state that another process cannot take over.
    pub(crate) fn pass_on<R>(&self, note: impl Fn(&T) -> Option<R>) -> Result<PassedDevice<R>, &'static str> {
        let contexts = self.contexts.iter().map(|(id, context)| context.pass_on(*id, &note));
        let resources = self.resources.iter().map(|(id, resource)| resource.pass_on(*id));
        Ok(PassedDevice {
            window_size: self.options.window_size,
            capset: self.options.capset.clone(),
            shown: self.scanouts.shown.clone(),
            resources: resources.collect::<Result<_, _>>()?,
            contexts: contexts.collect::<Option<_>>().ok_or("the driver has just reset the device")?,
            pieces: self.pieces.table.iter().map(|(memory, piece)| (*memory, piece.clone())).collect(),
            holdings: self
                .pieces
                .workers
                .iter()
                .map(|(owner, holdings)| (*owner, holdings.clone()))
                .collect(),
            waiting: self.waiting.to_vec(),
            away: self.away.iter().copied().collect(),
            dying: self.dying.iter().map(|(owner, bytes)| (*owner, *bytes)).collect(),
            next_owner: self.next_owner,
            next_piece: self.pieces.next,
        })
    }

    /// Goes on with the state of a device of another process. The caller calls this once, before any other event. `ticket` makes a command's ticket
    /// again; if this function fails it makes none, because a dropped ticket answers its command.
    ///
    /// # Errors
    ///
    /// The difference between the two devices, or the contradiction.
    pub(crate) fn resume<R>(
        &mut self,
        passed: PassedDevice<R>,
        ticket: impl Fn(R) -> T,
    ) -> Result<(), &'static str> {
        if passed.window_size != self.options.window_size {
            return Err("its window would have another size");
        }
        if passed.capset != self.options.capset || passed.shown.len() != self.scanouts.shown.len() {
            return Err("it would offer its guest a device with other properties");
        }
        if passed.resources.len() > self.options.limits.resources {
            return Err("the guest has more resources than --max-resources allows now");
        }
        let ids: FxHashSet<_> = passed.contexts.iter().map(|context| context.id).collect();
        let of_contexts = passed.contexts.iter().map(|context| context.owner);
        let mut owners = passed.resources.iter().map(|resource| resource.owner).chain(of_contexts);
        if ids.len() < passed.contexts.len() || owners.any(|owner| owner.0 >= passed.next_owner) {
            return Err(CONTRADICTION);
        }
        passed.resources.into_iter().try_for_each(|resource| self.resume_resource(resource))?;
        passed.contexts.into_iter().for_each(|context| self.resume_context(context, &ticket));
        self.resume_lending()?;
        passed.pieces.into_iter().for_each(|(memory, piece)| self.resume_piece(memory, piece));
        passed.holdings.into_iter().for_each(|(owner, holdings)| self.resume_holdings(owner, holdings));
        self.waiting.extend(passed.waiting);
        self.away.extend(passed.away);
        self.dying.extend(passed.dying);
        (self.scanouts.shown, self.next_owner) = (passed.shown, passed.next_owner);
        self.pieces.next = passed.next_piece;
        Ok(())
    }

    fn resume_resource(&mut self, passed: PassedResource) -> Result<(), &'static str> {
        let PassedResource { id, size, owner, uuid, blob } = passed;
        self.quotas.resources.hold(owner, 1);
        let kind = match blob {
            None => Kind::Guest,
            Some(PassedBlob { state, mappable, mapped, memory }) => {
                if let Some(offset) = mapped {
                    self.window.check(offset, size).map_err(|_| CONTRADICTION)?;
                    self.window.insert(offset, size, id);
                    self.quotas.live_maps.hold(owner, 1);
                    self.quotas.window.hold(owner, size);
                }
                let state = match state {
                    PassedBlobState::Shmem => {
                        self.quotas.shmem_bytes.hold(owner, size);
                        HostBlobState::Shmem
                    }
                    PassedBlobState::Exported(cache, creator) => HostBlobState::Exported(cache, creator),
                    PassedBlobState::Lent(cache, lender) => HostBlobState::Lent(cache, lender),
                    PassedBlobState::Revoked { seems_mapped } => HostBlobState::Revoked { seems_mapped },
                };
                Kind::HostBlob(HostBlob { state, mappable, mapped, memory })
            }
        };
        let resource = Resource { uuid, ..Resource::new(size, kind, owner) };
        self.resources.insert(id, resource).map_or(Ok(()), |_| Err(CONTRADICTION))
    }

    /// Notes in each context the resources that it lends: if the context's worker ends, the frontend unmaps them.
    fn resume_lending(&mut self) -> Result<(), &'static str> {
        for (id, resource) in &self.resources {
            if let Kind::HostBlob(HostBlob { state: HostBlobState::Lent(_, lender), .. }) = &resource.kind {
                self.contexts.get_mut(lender).ok_or(CONTRADICTION)?.lends(*id);
            }
        }
        Ok(())
    }

    fn resume_context<R>(&mut self, passed: PassedContext<R>, ticket: &impl Fn(R) -> T) {
        let PassedContext { id, state, owner, program, attached, timelines, drivers } = passed;
        self.quotas.contexts.hold(program, 1);
        let mut context = Context::new(state, owner, program);
        (context.attached, context.drivers) = (attached.into_iter().collect(), drivers);
        for (ring_idx, fences) in timelines {
            for (fence_id, passed) in fences {
                context.await_fence(ring_idx, fence_id, ticket(passed));
            }
        }
        self.contexts.insert(id, context);
    }

    fn resume_piece(&mut self, memory: MemoryId, piece: Piece) {
        self.quotas.memory.of(piece.heap).hold(piece.owner, piece.bytes);
        self.quotas.memory_pieces.hold(piece.owner, 1);
        self.pieces.table.insert(memory, piece);
    }

    fn resume_holdings(&mut self, owner: Owner, holdings: Holdings) {
        self.quotas.memory.device.hold(owner, holdings.credit.device);
        self.quotas.memory.host.hold(owner, holdings.credit.host);
        self.quotas.rings.hold(owner, holdings.rings);
        self.pieces.workers.insert(owner, holdings);
    }
}

impl<R> PassedDevice<R> {
    /// Returns the tickets of all commands that are not answered.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = &R> {
        let timelines = self.contexts.iter().flat_map(|context| &context.timelines);
        timelines.flat_map(|(_, fences)| fences).map(|(_, ticket)| ticket)
    }
}

impl<T> Context<T> {
    fn pass_on<R>(&self, id: ContextId, note: &impl Fn(&T) -> Option<R>) -> Option<PassedContext<R>> {
        let fences = |fences: &VecDeque<(FenceId, T)>| {
            fences.iter().map(|(fence_id, ticket)| Some((*fence_id, note(ticket)?))).collect::<Option<_>>()
        };
        let timelines = self.timelines.iter().map(|(ring_idx, all)| Some((*ring_idx, fences(all)?)));
        Some(PassedContext {
            id,
            state: self.state,
            owner: self.owner,
            program: self.program,
            attached: self.attached.iter().copied().collect(),
            timelines: timelines.collect::<Option<_>>()?,
            drivers: self.drivers.clone(),
        })
    }
}

impl<T> Resource<T> {
    fn pass_on(&self, id: ResourceId) -> Result<PassedResource, &'static str> {
        let blob = self.passed_blob()?;
        Ok(PassedResource { id, size: self.size, owner: self.owner, uuid: self.uuid, blob })
    }

    /// Writes the blob of a resource down, if it has one.
    ///
    /// # Errors
    ///
    /// The reason why another process cannot take it over now.
    fn passed_blob(&self) -> Result<Option<PassedBlob>, &'static str> {
        let Kind::HostBlob(HostBlob { state, mappable, mapped, memory }) = &self.kind else {
            return Ok(None);
        };
        let state = match state {
            HostBlobState::Shmem => PassedBlobState::Shmem,
            HostBlobState::Exported(cache, creator) => PassedBlobState::Exported(*cache, *creator),
            HostBlobState::Lent(cache, lender) => PassedBlobState::Lent(*cache, *lender),
            HostBlobState::Revoked { seems_mapped } => {
                PassedBlobState::Revoked { seems_mapped: *seems_mapped }
            }
            HostBlobState::Pending { .. } => return Err("memory is being exported"),
        };
        Ok(Some(PassedBlob { state, mappable: *mappable, mapped: *mapped, memory: *memory }))
    }
}

/// The error for a state that no device could have.
const CONTRADICTION: &str = "its resources contradict each other";

#[cfg(test)]
mod tests {
    use super::super::{DeviceOptions, Obstacle};
    use super::*;
    use config::{ContextLimits, DeviceLimits, Heap};

    fn device(window_size: u64) -> Device<u32> {
        let (limits, context_limits) = (DeviceLimits::default(), ContextLimits::default());
        Device::new(DeviceOptions { num_scanouts: 1, window_size, capset: vec![7], limits, context_limits })
    }

    fn passed(device: &Device<u32>) -> PassedDevice<u32> {
        device.pass_on(|ticket| Some(*ticket)).unwrap()
    }

    #[test]
    fn a_device_goes_on_with_what_the_one_before_held_if_it_is_alike() {
        let mut old = device(1 << 20);
        old.resource_create_2d(ResourceId(3)).unwrap();
        old.scanouts.shown[0] = Some(ResourceId(3));
        let written = passed(&old);
        let mut new = device(1 << 20);
        new.resume(written.clone(), |ticket| ticket).unwrap();
        assert_eq!(passed(&new), written);
        assert_eq!(new.quotas.resources.used(), 1);
        assert!(new.resource_create_2d(ResourceId(3)).is_err(), "it is there");
        assert!(device(1 << 21).resume(written.clone(), |ticket| ticket).is_err());
        let twice = PassedDevice {
            resources: [written.resources.clone(), written.resources].concat(),
            ..passed(&new)
        };
        assert!(device(1 << 20).resume(twice, |ticket| ticket).is_err());
    }

    #[test]
    fn contexts_go_on_with_their_fences_and_mappings_and_what_counts_for_them() {
        const VM: Owner = Owner(1);
        let (size, id, ctx_id) = (8192, ResourceId(3), ContextId(5));
        let mut old = device(1 << 20);
        old.next_owner = 2;
        old.quotas.contexts.hold(Owner(77), 1);
        let mut context = Context::new(ContextState::Alive, VM, Owner(77));
        context.attach(id);
        for fence in [7, 9] {
            context.await_fence(RingIdx(1), FenceId(fence), fence as u32);
        }
        old.contexts.insert(ctx_id, context);
        old.quotas.memory.host.hold(VM, size);
        old.quotas.memory_pieces.hold(VM, 1);
        let memory = old.pieces.add(VM, Heap::Host, size);
        old.pieces.shown(memory);
        let state = HostBlobState::Exported(MapCache::Cached, Some(ctx_id));
        let blob = HostBlob { state, mappable: true, mapped: Some(4096), memory: Some(memory) };
        old.quotas.take_map(VM, size).unwrap();
        old.window.insert(4096, size, id);
        old.add_resource(id, Resource::new(size, Kind::HostBlob(blob), VM)).unwrap();
        let state = HostBlobState::Lent(MapCache::WriteCombined, ctx_id);
        let lent = HostBlob { state, mappable: true, mapped: None, memory: None };
        old.add_resource(ResourceId(4), Resource::new(size, Kind::HostBlob(lent), VM)).unwrap();
        let written = passed(&old);
        let mut new = device(1 << 20);
        new.resume(written.clone(), |ticket| ticket).unwrap();
        assert_eq!(passed(&new), written);
        assert_eq!(new.obstacle(ctx_id), Some(Obstacle::Lends), "the frontend would not unmap what it lends");
        let of_none = PassedDevice { contexts: Vec::new(), ..written };
        assert!(
            device(1 << 20).resume(of_none, |ticket| ticket).is_err(),
            "memory of a context that is not there"
        );
        assert_eq!(new.quotas.memory.host.held(VM), size);
        assert_eq!((new.live_maps(), new.quotas.window.used()), (1, size));
        assert!(new.window.check(8192, 4096).is_err(), "it is mapped");
        assert_eq!(new.contexts.get_mut(&ctx_id).unwrap().signal(RingIdx(1), FenceId(9)), [7, 9]);
        assert_eq!(new.pieces.add(VM, Heap::Host, 1), MemoryId(memory.0 + 1), "no name comes twice");
        assert!(old.pass_on(|_| None::<u32>).is_err(), "its requests are void");
    }

    #[test]
    fn what_only_one_process_can_know_is_waited_for() {
        let mut device = device(1 << 20);
        let creator = ContextId(5);
        let state = HostBlobState::Pending { creator, create: None, waiting: Vec::new() };
        let blob = HostBlob { state, mappable: true, mapped: None, memory: None };
        device.add_resource(ResourceId(3), Resource::new(1, Kind::HostBlob(blob), Owner(0))).unwrap();
        assert_eq!(device.may_pass_on(), Err("memory is being exported"));
        device.remove_resource(ResourceId(3));
        let mut context = Context::new(ContextState::Alive, Owner(0), Owner(0));
        context.rests = true;
        device.contexts.insert(creator, context);
        assert_eq!(device.may_pass_on(), Err("a context is being restarted or swapped"));
    }
}
