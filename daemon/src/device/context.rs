//! A context: its abilities, the resources that it sees, and its fences that are due (VIRTIO 1.3, 5.7.6.9).

use super::quota::Owner;
use config::{MemoryId, PerHeap};
use protocol::ids::{FenceId, ResourceId, RingIdx};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// The state of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ContextState {
    /// No capability set: nothing can be submitted.
    Shell,
    /// The context's worker takes commands.
    Alive,
    /// The context's worker is gone.
    Lost,
}

/// The reason why a context cannot be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// There is no such context.
    Unknown,
    /// The context has no worker, and never had one.
    Shell,
    /// The context is lost.
    Lost,
    /// The worker lends memory, which would be gone with it.
    Lends,
}

/// The successor of a context's worker, from when it is shown the context's resources.
#[derive(Debug)]
pub(super) struct Successor {
    /// The owner that holds the pieces it was shown.
    pub(super) owner: Owner,
    /// The predecessor's pieces that the successor says it holds, and how many times each.
    pub(super) takes: FxHashMap<MemoryId, u64>,
    /// The credit that the successor says its predecessor was granted.
    pub(super) credit: PerHeap<u64>,
    /// The credit that the successor has given back.
    pub(super) returned: PerHeap<u64>,
}

/// A context.
#[derive(Debug)]
pub(crate) struct Context<T> {
    pub(super) state: ContextState,
    /// The owner that its resources count for.
    pub(super) owner: Owner,
    /// The owner that the context itself counts for: all contexts of the guest's programs of one name.
    pub(super) program: Owner,
    /// Resources the context sees.
    pub(super) attached: FxHashSet<ResourceId>,
    /// Fences not passed yet, per timeline in submission order.
    pub(super) timelines: BTreeMap<RingIdx, VecDeque<(FenceId, T)>>,
    /// Resources that the context's worker was asked to export, without an answer yet.
    pub(super) exporting: FxHashSet<ResourceId>,
    /// Resources whose memory is gone when the context's worker is gone.
    pub(super) lending: FxHashSet<ResourceId>,
    /// The successor of the context's worker, while both exist.
    pub(super) successor: Option<Successor>,
    /// While its worker has no driver: the processes that hold its GPU memory, namely the worker before, until it has ended, and the successor.
    pub(super) drivers: Vec<Owner>,
    /// The worker has handed over, and takes no answers.
    pub(super) rests: bool,
}

impl<T> Context<T> {
    /// Makes a context that sees no resource yet.
    pub(super) fn new(state: ContextState, owner: Owner, program: Owner) -> Self {
        Self {
            state,
            owner,
            program,
            attached: FxHashSet::default(),
            timelines: BTreeMap::new(),
            exporting: FxHashSet::default(),
            lending: FxHashSet::default(),
            successor: None,
            drivers: Vec::new(),
            rests: false,
        }
    }

    /// Returns the owner that its resources count for.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns whether the context has a worker, which ends with it.
    pub(crate) fn has_worker(&self) -> bool {
        self.state == ContextState::Alive
    }

    /// Notes a resource. Returns false if it was attached before.
    pub(crate) fn attach(&mut self, resource_id: ResourceId) -> bool {
        self.attached.insert(resource_id)
    }

    /// Forgets a resource. Returns false if it was not attached.
    pub(crate) fn detach(&mut self, resource_id: ResourceId) -> bool {
        self.attached.remove(&resource_id)
    }

    /// Notes an export for which the worker was asked.
    pub(crate) fn export_begins(&mut self, resource_id: ResourceId) {
        self.exporting.insert(resource_id);
    }

    /// Forgets an export that was answered.
    pub(crate) fn export_ends(&mut self, resource_id: ResourceId) {
        self.exporting.remove(&resource_id);
    }

    /// Notes a resource whose memory the context's worker lends.
    pub(crate) fn lends(&mut self, resource_id: ResourceId) {
        self.lending.insert(resource_id);
    }

    /// Forgets a resource whose memory the context's worker lends.
    pub(crate) fn lends_no_more(&mut self, resource_id: ResourceId) {
        self.lending.remove(&resource_id);
    }

    /// Keeps the ticket of a fenced submission.
    pub(crate) fn await_fence(&mut self, ring_idx: RingIdx, fence_id: FenceId, ticket: T) {
        self.timelines.entry(ring_idx).or_default().push_back((fence_id, ticket));
    }

    /// Takes the tickets of all fences of a timeline up to and including this one; none if this fence is not pending.
    pub(super) fn signal(&mut self, ring_idx: RingIdx, fence_id: FenceId) -> Vec<T> {
        let Some(timeline) = self.timelines.get_mut(&ring_idx) else { return Vec::new() };
        let passed = timeline.iter().position(|(pending, _)| *pending == fence_id).map_or(0, |at| at + 1);
        timeline.drain(..passed).map(|(_, ticket)| ticket).collect()
    }

    /// Returns the fences that are not passed, for each timeline in order.
    pub(super) fn open_fences(&self) -> impl Iterator<Item = (RingIdx, FenceId)> {
        let of = |(ring_idx, fences): (&RingIdx, &VecDeque<(FenceId, T)>)| {
            let ring_idx = *ring_idx;
            fences.iter().map(move |(fence_id, _)| (ring_idx, *fence_id)).collect::<Vec<_>>()
        };
        self.timelines.iter().flat_map(of)
    }

    /// Returns the number of fences that are not passed.
    pub(super) fn fences(&self) -> usize {
        self.timelines.values().map(VecDeque::len).sum()
    }

    pub(super) fn signal_all(&mut self) -> Vec<T> {
        let timelines = std::mem::take(&mut self.timelines);
        timelines.into_values().flatten().map(|(_, ticket)| ticket).collect()
    }
}
