//! GPUs that operators drain: new contexts begin on other GPUs of their VMs, and the contexts on the drained GPU are moved, one after the other.
//!
//! A GPU stays drained until an operator undrains it, or the broker ends. A context that cannot be moved goes on where it is, and the operator is
//! told why.

use super::super::connections::Peer;
use super::super::control::{self, Answer, PlannedMove};
use super::super::gpu::Gpu;
use super::super::run::Broker;
use super::super::vm::{Draining, Restart, Restarting};
use crate::ipc::{FromBroker, GpuChange, Placement, RestartTook};
use config::meant;
use protocol::ids::ContextId;
use sched::Nanos;

impl Broker {
    /// Returns the GPU, among those of all VMs, that an operator names.
    ///
    /// # Errors
    ///
    /// No GPU fits, or several do.
    pub(in crate::broker) fn gpu_named(&self, selection: &str) -> Result<usize, String> {
        let all = || self.gpus.iter().map(Gpu::label).collect::<Vec<_>>().join(", ");
        match meant(self.gpus.iter().map(Gpu::names), selection)[..] {
            [gpu] => Ok(gpu),
            [] => Err(format!("{selection}: no GPU of any VM; there are {}", all())),
            _ => Err(format!("{selection}: more than one GPU; there are {}", all())),
        }
    }

    /// Returns whether a GPU may be drained now.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub(in crate::broker) fn admit_drain(&self) -> Result<(), String> {
        match &self.requests.draining {
            Some(Draining { gpu, .. }) => {
                Err(format!("{} is being drained: wait until that is over", self.gpus[*gpu].label()))
            }
            None => Ok(()),
        }
    }

    /// Begins to drain a GPU, as was admitted.
    pub(in crate::broker) fn begin_drain(&mut self, peer: Peer, gpu: usize, now: Nanos) {
        self.gpus[gpu].is_drained = true;
        self.place_all(now);
        let queue = self.contexts_on(gpu).collect();
        self.requests.draining = Some(Draining { peer, gpu, queue, moved: 0 });
        self.drain_on(now);
    }

    /// Returns the contexts on a GPU, in the order in which a drain moves them.
    fn contexts_on(&self, gpu: usize) -> impl Iterator<Item = (usize, ContextId)> {
        self.vms.by_name().into_iter().flat_map(move |index| {
            let vm = &self.vms[index];
            let here = vm
                .contexts
                .iter()
                .filter(|(_, context)| context.places(&vm.gpus).any(|(place, _)| place == gpu));
            let mut here: Vec<_> = here.map(|(ctx_id, _)| (index, *ctx_id)).collect();
            here.sort_unstable_by_key(|(_, ctx_id)| ctx_id.0);
            here
        })
    }

    /// Returns what a drain of a GPU would do now. A move may still fail, for a reason that only the worker knows.
    pub(in crate::broker) fn drain_plan(&self, gpu: usize) -> Vec<PlannedMove> {
        let mut coming = vec![0; self.gpus.len()];
        let planned = self.contexts_on(gpu).filter_map(|(index, ctx_id)| {
            let context = self.named(index, ctx_id)?;
            let planned = self.planned_move((index, ctx_id), gpu, &coming);
            let (to, stays) = match planned {
                Ok(to) => (Some(to?), None),
                Err(why) => (None, Some(why)),
            };
            to.iter().for_each(|to| coming[*to] += 1);
            Some(PlannedMove { context, gpu: to.map(|to| self.gpus[to].label()), stays })
        });
        planned.collect()
    }

    /// Returns the GPU to which a drain would move a context; none if the context is not on the GPU. `coming` says how many contexts would be moved
    /// to each GPU before.
    ///
    /// # Errors
    ///
    /// The reason why the context would stay.
    fn planned_move(
        &self,
        (index, ctx_id): (usize, ContextId),
        gpu: usize,
        coming: &[usize],
    ) -> Result<Option<usize>, String> {
        self.admit_restart(index, ctx_id)?;
        let vm = &self.vms[index];
        if let Some(Some(Err(why))) = vm.contexts.get(&ctx_id).map(|context| context.movable) {
            return Err(why.to_string());
        }
        let change = self.change_away((index, ctx_id), gpu, coming)?;
        Ok(change.map(|change| vm.gpus[usize::from(change.to)].gpu))
    }

    /// Has contexts begin on a GPU again.
    pub(in crate::broker) fn undrain(&mut self, gpu: usize, now: Nanos) {
        self.gpus[gpu].is_drained = false;
        self.place_all(now);
    }

    /// Places the contexts that begin from now on, for all VMs.
    fn place_all(&mut self, now: Nanos) {
        self.vms.indices().into_iter().for_each(|index| self.place(index));
        self.set_shares(now);
    }

    /// Places the contexts of a VM that begin from now on: on its own GPUs, or, in place of a drained one, on another if the VM has one.
    pub(in crate::broker) fn place(&mut self, index: usize) {
        let vm = &self.vms[index];
        let mut placement = Placement::own(vm.placement.0.len());
        for at in 0..placement.0.len() {
            let own = placement.0[at];
            if self.gpu_of(index, own).is_drained {
                placement.0[at] = self.instead_of(index, own, &placement.0, &[]).unwrap_or(own);
            }
        }
        if placement != vm.placement {
            self.vms[index].placement = placement.clone();
            self.room_moves(index);
            self.tell(index, FromBroker::Place { placement });
        }
    }

    /// Returns the place of the GPU of a VM that replaces another: alike for programs, not drained, not among `taken`, and with the fewest contexts
    /// if as many more come to each GPU as `coming` says.
    fn instead_of(&self, index: usize, from: u8, taken: &[u8], coming: &[usize]) -> Option<u8> {
        let likeness = self.gpu_of(index, from).likeness;
        let places = (0..).take(self.vms[index].gpus.len()).filter(|place| !taken.contains(place));
        let fit = places.filter(|place| {
            let gpu = self.gpu_of(index, *place);
            !gpu.is_drained && gpu.likeness == likeness
        });
        fit.min_by_key(|place| {
            let gpu = self.vms[index].gpus[usize::from(*place)].gpu;
            self.gpus[gpu].contexts() + coming.get(gpu).copied().unwrap_or(0)
        })
    }

    /// Moves the next context of the GPU that is being drained, or reports that no context has to be moved any more.
    fn drain_on(&mut self, now: Nanos) {
        while let Some(draining) = &mut self.requests.draining {
            let (peer, gpu) = (draining.peer, draining.gpu);
            let Some((index, ctx_id)) = draining.queue.pop_front() else {
                return self.drained(now);
            };
            let Some(place) = self.named(index, ctx_id) else { continue };
            let admitted = |change| self.admit_restart(index, ctx_id).map(|()| change);
            let change = self.change_away((index, ctx_id), gpu, &[]);
            match change.and_then(|change| change.map(admitted).transpose()) {
                Ok(Some(change)) => {
                    let until = self.restart_until(index, now);
                    self.requests.restarts.push(Restarting::new(
                        peer,
                        Restart::Drain,
                        (index, ctx_id),
                        now,
                        until,
                    ));
                    return self.tell(index, FromBroker::Restart { ctx_id, change: Some(change) });
                }
                // The context has left the GPU since, or has ended.
                Ok(None) => {}
                Err(why) => self.tell_drain(&Answer::Draining { context: place, stays: Some(why) }, now),
            }
        }
    }

    /// Returns the change by which a context leaves a GPU; none if the context is not on it. `coming` is as for [`Self::instead_of`].
    ///
    /// # Errors
    ///
    /// The VM has no other GPU for the context.
    fn change_away(
        &self,
        (index, ctx_id): (usize, ContextId),
        gpu: usize,
        coming: &[usize],
    ) -> Result<Option<GpuChange>, String> {
        let vm = &self.vms[index];
        let Some(context) = vm.contexts.get(&ctx_id) else { return Ok(None) };
        let taken: Vec<u8> = context.keys.keys().copied().collect();
        let is_here = |place: &u8| vm.gpus.get(usize::from(*place)).is_some_and(|on| on.gpu == gpu);
        let Some(from) = taken.iter().copied().find(is_here) else { return Ok(None) };
        match self.instead_of(index, from, &taken, coming) {
            Some(to) => Ok(Some(GpuChange { from, to })),
            None => {
                Err("its VM has no other GPU like this one that is not drained: give it a spare-gpu".into())
            }
        }
    }

    /// Handles the result of a move of a context off the GPU that is being drained.
    pub(super) fn drain_moved(
        &mut self,
        (index, ctx_id): (usize, ContextId),
        outcome: Result<RestartTook, String>,
        now: Nanos,
    ) {
        let place = self.named(index, ctx_id);
        let Some(draining) = &mut self.requests.draining else { return };
        draining.moved += u32::from(outcome.is_ok());
        if let Some(context) = place {
            self.tell_drain(&Answer::Draining { context, stays: outcome.err() }, now);
        }
        self.drain_on(now);
    }

    /// Ends the draining: no context is left to be moved.
    fn drained(&mut self, now: Nanos) {
        let Some(Draining { peer, gpu, moved, .. }) = self.requests.draining.take() else { return };
        let left = u32::try_from(self.gpus[gpu].contexts()).unwrap_or(u32::MAX);
        log::info!(gpu = self.gpus[gpu].label(); "a GPU is drained: {moved} contexts were moved, {left} are left");
        let line = control::line(&Answer::Drained { moved, left });
        self.connections.stream(peer, &line, true, &self.epoll, now);
    }

    fn tell_drain(&mut self, answer: &Answer, now: Nanos) {
        let Some(draining) = &self.requests.draining else { return };
        self.connections.stream(draining.peer, &control::line(answer), false, &self.epoll, now);
    }

    /// Returns a context as operators name it, if its VM exists.
    fn named(&self, index: usize, ctx_id: ContextId) -> Option<String> {
        self.vms.get(index).map(|vm| vm.context_name(ctx_id))
    }
}
