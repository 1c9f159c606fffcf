//! Memory of drivers and threads of rings, counted: who holds how much, until the last holder lets go.
//!
//! Workers ask before they allocate. A *piece* is memory that others may come to see: it has holders, which are workers and blobs,
//! and counts for the context it was made for, or, when that has let go, for another that holds it. *Credit* is for memory that only
//! a driver uses; a worker gets more of it than it needs at once. A worker that lies about what it gave back harms its own context:
//! what it holds counts for it until its process has ended. The guest's next program does not see that: what it asks for and could have
//! had if those that are ending were gone waits until they are.

use super::context::Context;
use super::pieces::Waiting;
use super::quota::Owner;
use super::{Device, Effects};
use config::{Heap, MemoryCount, MemoryId, PerHeap, Wanted};
use protocol::ids::ContextId;
use rustc_hash::FxHashSet;

/// Requests of one context that may wait for workers to end: more than the threads of an honest worker make. Others are refused.
const WAITING_MAX: usize = 128;

impl<T> Device<T> {
    /// A worker asks for memory before its driver allocates it. Answered at once, or when workers have ended whose memory it takes.
    pub(crate) fn memory_wanted<E: Effects<Ticket = T>>(
        &mut self,
        ctx_id: ContextId,
        request: u32,
        wanted: Wanted,
        effects: &mut E,
    ) {
        let owner = self.owner(Some(ctx_id));
        let granted = match wanted {
            Wanted::Pages(bytes) => self.whole_pages(owner, bytes).and_then(|memory| {
                effects.make_memory(ctx_id, request, memory, bytes).map_err(|_| {
                    self.returned(owner, memory, effects);
                    "of the host"
                })
            }),
            Wanted::Piece { heap, bytes } => self.piece(owner, heap, bytes).map(|memory| {
                effects.grant_memory(ctx_id, request, Some(memory), bytes);
            }),
            Wanted::Credit { heap, least, bytes } => self.credit(owner, heap, least, bytes).map(|bytes| {
                effects.grant_memory(ctx_id, request, None, bytes);
            }),
        };
        let Err(limit) = granted else { return };
        if self.may_wait(ctx_id) && self.is_coming_free(owner, wanted) {
            self.waiting.push(Waiting { ctx_id, request, wanted });
        } else {
            effects.refuse_memory(ctx_id, request, limit);
        }
    }

    /// A worker asks how much memory its context has and could have. Answered at once.
    pub(crate) fn budget_wanted<E: Effects<Ticket = T>>(
        &mut self,
        ctx_id: ContextId,
        request: u32,
        effects: &mut E,
    ) {
        let owner = self.owner(Some(ctx_id));
        let counted = |heap| {
            let quota = self.quotas.memory.of(heap);
            MemoryCount { held: quota.held(owner), room: quota.room(owner) }
        };
        effects.tell_budget(ctx_id, request, PerHeap::each(counted));
    }

    fn may_wait(&self, ctx_id: ContextId) -> bool {
        self.waiting.iter().filter(|waiting| waiting.ctx_id == ctx_id).count() < WAITING_MAX
    }

    /// Returns whether the workers that are ending hold what a request lacks.
    fn is_coming_free(&self, owner: Owner, wanted: Wanted) -> bool {
        let (heap, bytes, pieces) = match wanted {
            Wanted::Pages(bytes) => (Heap::Host, bytes, 1),
            Wanted::Piece { heap, bytes } => (heap, bytes, 1),
            Wanted::Credit { heap, least, .. } => (heap, least, 0),
        };
        let PerHeap { device, host } = &self.quotas.memory;
        let memory = match heap {
            Heap::Device => device,
            Heap::Host => host,
        };
        let ending = self.ending();
        !ending.is_empty()
            && memory.check(owner, bytes, &ending).is_ok()
            && self.quotas.memory_pieces.check(owner, pieces, &ending).is_ok()
    }

    /// Workers that were told to end and hold something still.
    fn ending(&self) -> Vec<Owner> {
        let alive: FxHashSet<_> =
            self.contexts.values().filter(|context| context.has_worker()).map(Context::owner).collect();
        self.pieces.workers.keys().copied().filter(|owner| !alive.contains(owner)).collect()
    }

    /// A context has no worker any more: nobody is left to answer.
    pub(super) fn waits_no_more(&mut self, ctx_id: ContextId) {
        self.waiting.retain(|waiting| waiting.ctx_id != ctx_id);
    }

    /// Workers' memory has come back: what waits for it asks again.
    fn ask_again<E: Effects<Ticket = T>>(&mut self, effects: &mut E) {
        for Waiting { ctx_id, request, wanted } in std::mem::take(&mut self.waiting) {
            self.memory_wanted(ctx_id, request, wanted, effects);
        }
    }

    fn whole_pages(&mut self, owner: Owner, bytes: u64) -> Result<MemoryId, &'static str> {
        self.piece(owner, Heap::Host, bytes.checked_next_multiple_of(4096).unwrap_or(u64::MAX))
    }

    fn piece(&mut self, owner: Owner, heap: Heap, bytes: u64) -> Result<MemoryId, &'static str> {
        self.quotas.memory_pieces.take(owner, 1)?;
        if let Err(limit) = self.quotas.memory.of(heap).take(owner, bytes) {
            self.quotas.memory_pieces.give_back(owner, 1);
            return Err(limit);
        }
        Ok(self.pieces.add(owner, heap, bytes))
    }

    fn credit(&mut self, owner: Owner, heap: Heap, least: u64, bytes: u64) -> Result<u64, &'static str> {
        let quota = self.quotas.memory.of(heap);
        let granted = match quota.take(owner, bytes.max(least)) {
            Ok(()) => bytes.max(least),
            Err(_) => quota.take(owner, least).map(|()| least)?,
        };
        *self.pieces.workers.entry(owner).or_default().credit.of(heap) += granted;
        Ok(granted)
    }

    /// A worker has let go of a piece.
    pub(crate) fn memory_returned<E: Effects<Ticket = T>>(
        &mut self,
        ctx_id: ContextId,
        memory: MemoryId,
        effects: &mut E,
    ) {
        self.returned(self.owner(Some(ctx_id)), memory, effects);
    }

    fn returned<E: Effects<Ticket = T>>(&mut self, owner: Owner, memory: MemoryId, effects: &mut E) {
        let Some(holdings) = self.pieces.workers.get_mut(&owner) else { return };
        let Some(times) = holdings.pieces.get_mut(&memory) else { return };
        *times -= 1;
        let gone = *times == 0;
        if gone {
            holdings.pieces.remove(&memory);
        }
        if self.pieces.let_go(memory, 1, &mut self.quotas) {
            effects.forget_memory(memory);
        } else if gone {
            self.pieces.pass_on(memory, owner, &mut self.quotas);
        }
    }

    /// A worker gives back what it was given in advance.
    pub(crate) fn credit_returned(&mut self, ctx_id: ContextId, heap: Heap, bytes: u64) {
        let owner = self.owner(Some(ctx_id));
        let Some(holdings) = self.pieces.workers.get_mut(&owner) else { return };
        let credit = holdings.credit.of(heap);
        let bytes = bytes.min(*credit);
        *credit -= bytes;
        self.quotas.memory.of(heap).give_back(owner, bytes);
    }

    /// A worker says that a ring begins. It has its thread already, so a context that must not have it cannot go on.
    ///
    /// # Errors
    ///
    /// The name of the limit that is reached.
    pub(crate) fn ring_begins(&mut self, ctx_id: ContextId) -> Result<(), &'static str> {
        let owner = self.owner(Some(ctx_id));
        if self.quotas.rings.take(owner, 1).is_err() {
            // Those of workers that are ending have no work any more.
            self.quotas.rings.take_as_if_gone(owner, 1, &self.ending())?;
        }
        self.pieces.workers.entry(owner).or_default().rings += 1;
        Ok(())
    }

    /// A worker says that a ring has ended.
    pub(crate) fn ring_ends(&mut self, ctx_id: ContextId) {
        let owner = self.owner(Some(ctx_id));
        let Some(holdings) = self.pieces.workers.get_mut(&owner).filter(|held| held.rings > 0) else {
            return;
        };
        holdings.rings -= 1;
        self.quotas.rings.give_back(owner, 1);
    }

    /// Bytes of a piece that this context's worker holds.
    pub(crate) fn held_piece(&self, ctx_id: ContextId, memory: MemoryId) -> Option<u64> {
        let holdings = self.pieces.workers.get(&self.owner(Some(ctx_id)))?;
        holdings
            .pieces
            .contains_key(&memory)
            .then(|| self.pieces.table.get(&memory).map(|piece| piece.bytes))?
    }

    /// Returns whether a context's worker holds a piece that was made for it and given to no other.
    pub(super) fn is_its_own(&self, ctx_id: ContextId, memory: MemoryId) -> bool {
        let own = self.pieces.table.get(&memory).is_some_and(|piece| !piece.shared);
        own && self.held_piece(ctx_id, memory).is_some()
    }

    /// Bytes of memory that each context holds.
    pub(crate) fn held_memory(&self) -> Vec<(ContextId, PerHeap<u64>)> {
        let PerHeap { device, host } = &self.quotas.memory;
        let held = |owner| PerHeap { device: device.held(owner), host: host.held(owner) };
        self.contexts.iter().map(|(ctx_id, context)| (*ctx_id, held(context.owner()))).collect()
    }

    /// Bytes of memory that the VM holds, contexts that have ended included.
    pub(crate) fn held_memory_of_all(&self) -> PerHeap<u64> {
        let PerHeap { device, host } = &self.quotas.memory;
        PerHeap { device: device.used(), host: host.used() }
    }

    /// The process of a worker has ended, and with it all it held; `worker` is what [`Effects::start_worker`] was given.
    pub(crate) fn worker_ended<E: Effects<Ticket = T>>(&mut self, worker: u64, effects: &mut E) {
        let owner = Owner(worker);
        let Some(holdings) = self.pieces.workers.remove(&owner) else { return };
        self.quotas.memory.device.give_back(owner, holdings.credit.device);
        self.quotas.memory.host.give_back(owner, holdings.credit.host);
        self.quotas.rings.give_back(owner, holdings.rings);
        for (memory, times) in holdings.pieces {
            if self.pieces.let_go(memory, times, &mut self.quotas) {
                effects.forget_memory(memory);
            } else {
                self.pieces.pass_on(memory, owner, &mut self.quotas);
            }
        }
        self.ask_again(effects);
    }

    /// A blob shows a piece.
    pub(super) fn show_piece(&mut self, memory: MemoryId) {
        self.pieces.shown(memory);
    }

    /// A blob that showed a piece is gone.
    pub(super) fn hide_piece<E: Effects<Ticket = T>>(&mut self, memory: MemoryId, effects: &mut E) {
        if self.pieces.let_go(memory, 1, &mut self.quotas) {
            effects.forget_memory(memory);
        }
    }

    /// A context's worker was given the descriptor of a piece.
    pub(super) fn give_piece(&mut self, ctx_id: ContextId, memory: MemoryId) {
        let owner = self.owner(Some(ctx_id));
        self.pieces.given(memory, owner);
    }

    /// Bytes that count as device memory and as host memory.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn memory_used(&self) -> (u64, u64) {
        (self.quotas.memory.device.used(), self.quotas.memory.host.used())
    }
}
