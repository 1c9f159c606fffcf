//! A world that checks the requests to it: answers that are due, workers that run, memory that is there, ranges that are free.

use super::{LIMITS, WINDOW};
use crate::device::{EffectFailed, Effects, GuestError, Shown};
use config::{MemoryCount, MemoryId, PerHeap};
use protocol::ids::{BlobId, ContextId, FenceId, ResourceId, RingIdx};
use protocol::virtio_gpu::{Header, Response};
use std::collections::{BTreeMap, BTreeSet};

/// The right to one answer.
#[derive(Debug)]
pub(super) struct Ticket(u32);

/// The outside as the device has left it.
#[derive(Default)]
pub(super) struct World {
    /// Effects that can fail do fail.
    pub fails: bool,
    due: BTreeSet<u32>,
    /// Running workers and the resources they see.
    workers: BTreeMap<ContextId, BTreeSet<ResourceId>>,
    /// The successors of these workers: the number of each, and the resources that it sees.
    successors: BTreeMap<ContextId, (u64, BTreeSet<ResourceId>)>,
    /// Workers that have handed over, and are told of nothing but the resources that they are shown.
    resting: BTreeSet<ContextId>,
    /// The resources that workers see, and whose export is still expected.
    expected: BTreeSet<(ContextId, ResourceId)>,
    /// Memory kept, with its bytes.
    blobs: BTreeMap<ResourceId, u64>,
    /// The blobs that [`Effects::create_shmem`] made.
    shared: BTreeSet<ResourceId>,
    /// The resources whose memory is gone.
    revoked: BTreeSet<ResourceId>,
    /// Mapped ranges: start, and end and resource.
    maps: BTreeMap<u64, (u64, ResourceId)>,
    /// Workers whose processes are about to end.
    pub ending: Vec<u64>,
    /// The number of each context's worker.
    numbers: BTreeMap<ContextId, u64>,
    /// Pieces of memory that a worker or a resource holds.
    memories: BTreeSet<u64>,
    /// Requests for memory without an answer, and the asking context.
    wanted: BTreeMap<u32, ContextId>,
    /// Effects since the current event began, and answers that were due then, to the guest and to workers.
    effects: usize,
    due_before: usize,
}

impl World {
    /// An event begins.
    pub(super) fn begin(&mut self) {
        (self.effects, self.due_before) = (0, self.due.len() + self.wanted.len());
    }

    /// Notes a command whose answer is due.
    pub(super) fn promise(&mut self, number: u32) -> Ticket {
        self.due.insert(number);
        Ticket(number)
    }

    /// Returns the number of answers that are due.
    pub(super) fn due(&self) -> usize {
        self.due.len()
    }

    /// Returns the number of mapped ranges.
    pub(super) fn live_maps(&self) -> usize {
        self.maps.len()
    }

    /// Returns the contexts with a worker.
    pub(super) fn running(&self) -> Vec<ContextId> {
        self.workers.keys().copied().collect()
    }

    /// Returns whether the context has a worker.
    pub(super) fn is_running(&self, ctx_id: ContextId) -> bool {
        self.workers.contains_key(&ctx_id)
    }

    /// A worker asks for memory.
    pub(super) fn wants(&mut self, ctx_id: ContextId, request: u32) {
        self.wanted.insert(request, ctx_id);
    }

    /// Answers the worker that asked.
    fn answer(&mut self, ctx_id: ContextId, request: u32) {
        self.worker(ctx_id);
        assert!(!self.rests(ctx_id), "one that rests takes no answers");
        assert_eq!(self.wanted.remove(&request), Some(ctx_id), "request {request} answered twice");
    }

    /// Returns one of the pieces that were made last.
    pub(super) fn recent_memory(&self, back: u32) -> Option<MemoryId> {
        self.memories.iter().rev().nth(back as usize).copied().map(MemoryId)
    }

    /// Returns whether a worker has a successor.
    pub(super) fn has_successor(&self, ctx_id: ContextId) -> bool {
        self.successors.contains_key(&ctx_id)
    }

    /// Returns whether a worker has handed over.
    pub(super) fn rests(&self, ctx_id: ContextId) -> bool {
        self.resting.contains(&ctx_id)
    }

    /// A worker gets a successor.
    pub(super) fn successor_begins(&mut self, ctx_id: ContextId, number: u64) {
        assert!(self.successors.insert(ctx_id, (number, BTreeSet::new())).is_none(), "two successors");
    }

    /// A worker has handed over.
    pub(super) fn rests_now(&mut self, ctx_id: ContextId) {
        self.resting.insert(ctx_id);
    }

    /// The successor is the worker from now on, and sees the resources that its predecessor saw. The predecessor's process holds nothing.
    pub(super) fn successor_serves(&mut self, ctx_id: ContextId) {
        let (number, sees) = self.successors.remove(&ctx_id).expect("there is one");
        let saw = self.workers.insert(ctx_id, sees.clone());
        assert_eq!(saw, Some(sees), "the successor sees other resources");
        self.resting.remove(&ctx_id);
        self.wanted.retain(|_, worker| *worker != ctx_id);
        self.ending.push(number);
    }

    /// A successor has ended, if there is one.
    pub(super) fn successor_gone(&mut self, ctx_id: ContextId) {
        self.resting.remove(&ctx_id);
        self.ending.extend(self.successors.remove(&ctx_id).map(|(number, _)| number));
    }

    /// A worker ended by itself.
    pub(super) fn worker_gone(&mut self, ctx_id: ContextId) {
        self.successor_gone(ctx_id);
        self.workers.remove(&ctx_id);
        self.ending.extend(self.numbers.remove(&ctx_id));
        self.wanted.retain(|_, worker| *worker != ctx_id);
        self.expected.retain(|(worker, _)| *worker != ctx_id);
    }

    /// A worker exported memory under a resource, which it sees from now on.
    pub(super) fn exported(&mut self, ctx_id: ContextId, resource_id: ResourceId, size: u64) {
        assert!(self.blobs.insert(resource_id, size).is_none(), "memory under {resource_id} replaced");
        assert!(self.worker(ctx_id).insert(resource_id));
    }

    /// The frontend drops its mappings.
    pub(super) fn forget_maps(&mut self) {
        self.maps.clear();
    }

    /// A reset leaves nothing; tickets were dropped.
    pub(super) fn after_reset(&mut self) {
        self.due.clear();
        assert!(self.successors.is_empty() && self.resting.is_empty());
        assert!(self.workers.is_empty() && self.blobs.is_empty() && self.maps.is_empty());
        assert!(self.memories.is_empty(), "memory without a holder is remembered");
    }

    /// Checks the invariants that hold after every event.
    pub(super) fn check(&self, contexts: usize) {
        // A command that waited may detach its resource from every context, unmap it, drop it, and be answered. Memory that a worker lent is revoked
        // when the worker ends.
        let bound = (2 + self.due_before) * (contexts + 4) + 3 * LIMITS.resources + LIMITS.live_maps;
        assert!(self.effects <= bound, "{} effects of one event", self.effects);
        assert!(self.workers.len() <= contexts);
        let waits = self.wanted.values().any(|ctx_id| !self.rests(*ctx_id));
        assert!(!waits || !self.ending.is_empty(), "a worker waits, though no other gives memory up");
        let shared: u64 = self.shared.iter().filter_map(|id| self.blobs.get(id)).sum();
        assert!(shared <= LIMITS.shmem_total_bytes, "{shared} bytes of shared memory");
    }

    fn worker(&mut self, ctx_id: ContextId) -> &mut BTreeSet<ResourceId> {
        self.workers.get_mut(&ctx_id).expect("only running workers are spoken to")
    }

    fn outcome(&mut self) -> Result<(), EffectFailed> {
        self.effects += 1;
        if self.fails { Err(EffectFailed) } else { Ok(()) }
    }
}

impl Effects for World {
    type Ticket = Ticket;

    fn respond(&mut self, Ticket(number): Ticket, _: Response) {
        self.effects += 1;
        assert!(self.due.remove(&number), "command {number} answered twice");
    }

    fn refused(&mut self, _: &Header, _: &GuestError) {
        self.effects += 1;
    }

    fn start_worker(&mut self, ctx_id: ContextId, _: &[u8], worker: u64) -> Result<(), EffectFailed> {
        self.outcome()?;
        self.numbers.insert(ctx_id, worker);
        assert!(self.workers.insert(ctx_id, BTreeSet::new()).is_none(), "second worker of {ctx_id}");
        Ok(())
    }

    fn end_worker(&mut self, ctx_id: ContextId) {
        self.effects += 1;
        assert!(self.workers.remove(&ctx_id).is_some(), "context {ctx_id} has no worker to end");
        self.successor_gone(ctx_id);
        self.ending.extend(self.numbers.remove(&ctx_id));
        self.wanted.retain(|_, worker| *worker != ctx_id);
        self.expected.retain(|(worker, _)| *worker != ctx_id);
    }

    fn submit(
        &mut self,
        ctx_id: ContextId,
        data: &[u8],
        _: Option<(RingIdx, FenceId)>,
    ) -> Result<(), EffectFailed> {
        self.worker(ctx_id);
        assert!(data.len() <= LIMITS.submit_bytes as usize);
        self.outcome()
    }

    fn make_memory(
        &mut self,
        ctx_id: ContextId,
        request: u32,
        memory: MemoryId,
        size: u64,
    ) -> Result<(), EffectFailed> {
        assert!(size <= LIMITS.host_memory);
        self.outcome()?;
        assert!(self.memories.insert(memory.0));
        self.answer(ctx_id, request);
        Ok(())
    }

    fn grant_memory(&mut self, ctx_id: ContextId, request: u32, memory: Option<MemoryId>, _: u64) {
        self.effects += 1;
        assert!(memory.is_none_or(|memory| self.memories.insert(memory.0)));
        self.answer(ctx_id, request);
    }

    fn tell_budget(&mut self, ctx_id: ContextId, request: u32, memory: PerHeap<MemoryCount>) {
        self.effects += 1;
        assert!(memory.device.room <= LIMITS.device_memory && memory.host.room <= LIMITS.host_memory);
        self.answer(ctx_id, request);
    }

    fn memory_waits(&mut self, _: ContextId, _: u32) {
        self.effects += 1;
    }

    fn refuse_memory(&mut self, ctx_id: ContextId, request: u32, _: Option<&'static str>) {
        self.effects += 1;
        self.answer(ctx_id, request);
    }

    fn forget_memory(&mut self, memory: MemoryId) {
        self.effects += 1;
        // A piece that the host failed to make was never there.
        self.memories.remove(&memory.0);
    }

    fn create_shmem(&mut self, resource_id: ResourceId, size: u64) -> Result<(), EffectFailed> {
        assert!(size <= LIMITS.shmem_blob_bytes);
        self.outcome()?;
        assert!(self.blobs.insert(resource_id, size).is_none(), "memory under {resource_id} replaced");
        self.shared.insert(resource_id);
        Ok(())
    }

    fn export_blob(
        &mut self,
        ctx_id: ContextId,
        resource_id: ResourceId,
        _: BlobId,
        _: u64,
        _: bool,
    ) -> Result<(), EffectFailed> {
        self.worker(ctx_id);
        assert!(!self.blobs.contains_key(&resource_id));
        self.outcome()
    }

    fn blob_gone(&mut self, _: ContextId, memory: MemoryId) {
        self.effects += 1;
        assert!(self.memories.contains(&memory.0), "it has no holder any more");
    }

    fn revoke_blob(&mut self, resource_id: ResourceId) {
        self.effects += 1;
        assert!(self.blobs.contains_key(&resource_id), "no memory under {resource_id}");
        assert!(self.revoked.insert(resource_id), "revoked twice");
        assert!(self.maps.values().all(|(_, mapped)| *mapped != resource_id), "it is still mapped");
    }

    fn drop_blob(&mut self, resource_id: ResourceId) {
        self.effects += 1;
        self.revoked.remove(&resource_id);
        assert!(self.blobs.remove(&resource_id).is_some(), "no memory under {resource_id}");
        let mut seen = self.workers.values().chain(self.successors.values().map(|(_, seen)| seen));
        assert!(seen.all(|seen| !seen.contains(&resource_id)), "a worker still sees it");
        assert!(self.maps.values().all(|(_, mapped)| *mapped != resource_id), "it is still mapped");
        self.shared.remove(&resource_id);
    }

    fn attach(&mut self, ctx_id: ContextId, resource_id: ResourceId, size: u64, shown: Shown) {
        self.effects += 1;
        let there = self.blobs.get(&resource_id).copied();
        assert_eq!(there, (shown != Shown::Expected).then_some(size));
        let expected = self.expected.remove(&(ctx_id, resource_id));
        assert_eq!(self.worker(ctx_id).insert(resource_id), !expected, "attached twice");
        if shown == Shown::Expected {
            self.expected.insert((ctx_id, resource_id));
        }
        if let Some((_, seen)) = self.successors.get_mut(&ctx_id) {
            seen.insert(resource_id);
        }
    }

    fn attach_to_successor(&mut self, ctx_id: ContextId, resource_id: ResourceId, size: u64, shown: Shown) {
        self.effects += 1;
        let there = self.blobs.get(&resource_id).copied();
        assert_eq!(there, (shown != Shown::Expected).then_some(size));
        assert!(self.worker(ctx_id).contains(&resource_id), "its worker does not see it");
        let (_, seen) = self.successors.get_mut(&ctx_id).expect("there is one");
        assert!(seen.insert(resource_id), "shown twice");
    }

    fn detach(&mut self, ctx_id: ContextId, resource_id: ResourceId) {
        self.effects += 1;
        assert!(self.worker(ctx_id).remove(&resource_id), "it was not attached");
        self.expected.remove(&(ctx_id, resource_id));
        if let Some((_, seen)) = self.successors.get_mut(&ctx_id) {
            assert!(seen.remove(&resource_id), "its successor was not shown it");
        }
    }

    fn map_blob(&mut self, resource_id: ResourceId, offset: u64, size: u64) -> Result<(), EffectFailed> {
        assert!(!self.revoked.contains(&resource_id), "it was revoked");
        assert_eq!(self.blobs.get(&resource_id), Some(&size));
        let end = offset.checked_add(size).expect("a range");
        assert!(offset.is_multiple_of(4096) && end <= WINDOW);
        assert!(self.maps.iter().all(|(start, (stop, _))| end <= *start || *stop <= offset), "overlap");
        self.outcome()?;
        self.maps.insert(offset, (end, resource_id));
        Ok(())
    }

    /// Unmaps a range, which counts as unmapped even if that fails: the performer of effects then ends the session.
    fn unmap_blob(&mut self, resource_id: ResourceId, offset: u64, size: u64) -> Result<(), EffectFailed> {
        assert_eq!(self.maps.remove(&offset), Some((offset + size, resource_id)));
        self.outcome()
    }

    fn random(&mut self) -> Result<[u8; 16], EffectFailed> {
        self.outcome().map(|()| [0xff; 16])
    }
}
