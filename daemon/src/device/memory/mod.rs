//! This module counts the memory of drivers and the threads of rings that each context holds, until the last holder lets go.
//!
//! Workers ask before they allocate. A *piece* is memory that other workers may come to see. A piece has holders, which are workers and blobs,
//! and counts for the context for which it was made, or, when that context has let go, for another that holds it. *Credit* is for memory that only
//! a driver uses; a worker gets more credit than it needs at once. A worker that lies about returned memory harms its own context: the memory
//! counts for it until its process has ended. The guest's next program does not notice that: a request that could be granted if the
//! ending workers were gone waits until they are gone.

mod room;

pub(crate) use room::Lack;

use super::context::{Context, Successor};
use super::pieces::Waiting;
use super::quota::Owner;
use super::{Device, Effects};
use config::{Heap, MemoryCount, MemoryId, PerHeap, Wanted};
use protocol::ids::ContextId;
use rustc_hash::FxHashSet;

/// Requests of one context that may wait (`memory_requests`): more than the threads of an honest worker make. Further ones are refused.
const WAITING_MAX: usize = 128;

/// Bytes by which allocations of a context grow at most when each is rounded up to whole pages: those of 262 144 allocations.
const ROUNDING_MAX: u64 = 1 << 30;

/// The reason for which a request is not granted now.
enum Lacks {
    /// The VM may not hold more of the GPUs' memory: the request has to wait for [`Device::room`].
    Room,
    /// The limit of this name is reached.
    Quota(&'static str),
}

impl<T> Device<T> {
    /// A worker asks for memory before its driver allocates it. Answers at once, or when ending workers or other VMs have given up memory.
    pub(crate) fn memory_wanted<E: Effects<Ticket = T>>(
        &mut self,
        ctx_id: ContextId,
        request: u32,
        wanted: Wanted,
        effects: &mut E,
    ) {
        let asked = Waiting { ctx_id, request, wanted, is_told: false };
        let Err(lacks) = self.grant(&asked, self.free_room(), effects) else { return };
        let may_wait = self.may_wait(ctx_id);
        match lacks {
            Lacks::Room if may_wait => self.wait_for_room(asked, effects),
            Lacks::Quota(_) if may_wait && self.is_coming_free(&asked, &self.ending()) => {
                self.waiting.push(asked);
            }
            Lacks::Room => effects.refuse_memory(ctx_id, request, Some("memory_requests")),
            Lacks::Quota(limit) => effects.refuse_memory(ctx_id, request, Some(limit)),
        }
    }

    /// Grants a request, if that is possible with `free` bytes of room.
    fn grant<E: Effects<Ticket = T>>(
        &mut self,
        asked: &Waiting,
        free: u64,
        effects: &mut E,
    ) -> Result<(), Lacks> {
        let Waiting { ctx_id, request, wanted, .. } = *asked;
        let owner = self.owner(Some(ctx_id));
        let granted = match self.within_room(owner, wanted, free).ok_or(Lacks::Room)? {
            Wanted::Pages(bytes) => self.whole_pages(owner, bytes).and_then(|memory| {
                effects.make_memory(ctx_id, request, memory, bytes).map_err(|_| {
                    self.let_go(owner, memory, effects);
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
        granted.map_err(Lacks::Quota)
    }

    /// Has a request wait until there is room. Tells the worker once, because such a wait may be long.
    fn wait_for_room<E: Effects<Ticket = T>>(&mut self, mut asked: Waiting, effects: &mut E) {
        if !std::mem::replace(&mut asked.is_told, true) {
            effects.memory_waits(asked.ctx_id, asked.request);
        }
        self.waiting.push(asked);
    }

    /// A worker withdraws a request. Answers the request if it waits, so that the worker can forget it. Returns whether it waited.
    pub(crate) fn memory_wanted_no_more<E: Effects<Ticket = T>>(
        &mut self,
        ctx_id: ContextId,
        request: u32,
        effects: &mut E,
    ) -> bool {
        let is_it = |waiting: &Waiting| (waiting.ctx_id, waiting.request) == (ctx_id, request);
        let found = self.waiting.iter().position(is_it).map(|found| self.waiting.remove(found));
        found.iter().for_each(|_| effects.refuse_memory(ctx_id, request, None));
        found.is_some()
    }

    /// A worker asks how much memory its context has and could have.
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

    /// Returns whether a request could be granted if the `ending` workers were gone.
    fn is_coming_free(&self, asked: &Waiting, ending: &[Owner]) -> bool {
        let owner = self.owner(Some(asked.ctx_id));
        let (heap, bytes, pieces) = match asked.wanted {
            Wanted::Pages(bytes) => (Heap::Host, bytes, 1),
            Wanted::Piece { heap, bytes } => (heap, bytes, 1),
            Wanted::Credit { heap, least, .. } => (heap, least, 0),
        };
        let PerHeap { device, host } = &self.quotas.memory;
        let memory = match heap {
            Heap::Device => device,
            Heap::Host => host,
        };
        !ending.is_empty()
            && memory.check(owner, bytes, ending).is_ok()
            && self.quotas.memory_pieces.check(owner, pieces, ending).is_ok()
    }

    /// Returns the workers that were told to end and still hold memory or rings.
    fn ending(&self) -> Vec<Owner> {
        let alive = self.contexts.values().filter(|context| context.has_worker());
        let successor = |context: &Context<T>| context.successor.as_ref().map(|successor| successor.owner);
        let alive: FxHashSet<_> =
            alive.flat_map(|context| [Some(context.owner()), successor(context)]).flatten().collect();
        self.pieces.workers.keys().copied().filter(|owner| !alive.contains(owner)).collect()
    }

    /// A context has no worker any more: forgets its waiting requests.
    pub(super) fn waits_no_more(&mut self, ctx_id: ContextId) {
        self.waiting.retain(|waiting| waiting.ctx_id != ctx_id);
    }

    /// Memory of workers has come back: the waiting requests ask again. They waited before, so the bound on waiting requests is not checked.
    pub(super) fn ask_again<E: Effects<Ticket = T>>(&mut self, effects: &mut E) {
        if self.waiting.is_empty() {
            return;
        }
        let (ending, mut free) = (self.ending(), self.free_room());
        for asked in std::mem::take(&mut self.waiting) {
            if self.contexts.get(&asked.ctx_id).is_some_and(|context| context.rests) {
                self.waiting.push(asked);
                continue;
            }
            match self.grant(&asked, free, effects) {
                Ok(()) => free = self.free_room(),
                Err(Lacks::Room) => self.wait_for_room(asked, effects),
                Err(Lacks::Quota(_)) if self.is_coming_free(&asked, &ending) => self.waiting.push(asked),
                Err(Lacks::Quota(limit)) => effects.refuse_memory(asked.ctx_id, asked.request, Some(limit)),
            }
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
        if self.let_go(owner, memory, effects) {
            self.ask_again(effects);
        }
    }

    /// A worker lets go of a piece once. Returns whether it does not hold the piece any more.
    fn let_go<E: Effects<Ticket = T>>(&mut self, owner: Owner, memory: MemoryId, effects: &mut E) -> bool {
        let Some(holdings) = self.pieces.workers.get_mut(&owner) else { return false };
        let Some(times) = holdings.pieces.get_mut(&memory) else { return false };
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
        gone
    }

    /// A worker gives credit back.
    pub(crate) fn credit_returned<E: Effects<Ticket = T>>(
        &mut self,
        ctx_id: ContextId,
        heap: Heap,
        bytes: u64,
        effects: &mut E,
    ) {
        let owner = self.owner(Some(ctx_id));
        let Some(holdings) = self.pieces.workers.get_mut(&owner) else { return };
        let credit = holdings.credit.of(heap);
        let bytes = bytes.min(*credit);
        *credit -= bytes;
        self.quotas.memory.of(heap).give_back(owner, bytes);
        if bytes > 0 {
            self.ask_again(effects);
        }
    }

    /// A worker says that a ring begins. The ring has its thread already, so a context that exceeds the limit cannot go on.
    ///
    /// # Errors
    ///
    /// The name of the limit that is reached.
    pub(crate) fn ring_begins(&mut self, ctx_id: ContextId) -> Result<(), &'static str> {
        let owner = self.owner(Some(ctx_id));
        if self.quotas.rings.take(owner, 1).is_err() {
            // The rings of ending workers have no work any more.
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

    /// Returns the bytes of a piece, if this context's worker holds it.
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

    /// Returns the bytes of memory that each context holds.
    pub(crate) fn held_memory(&self) -> Vec<(ContextId, PerHeap<u64>)> {
        let PerHeap { device, host } = &self.quotas.memory;
        let held = |owner| PerHeap { device: device.held(owner), host: host.held(owner) };
        self.contexts.iter().map(|(ctx_id, context)| (*ctx_id, held(context.owner()))).collect()
    }

    /// Returns the bytes of memory that the VM holds, contexts that have ended included.
    pub(crate) fn held_memory_of_all(&self) -> PerHeap<u64> {
        let PerHeap { device, host } = &self.quotas.memory;
        PerHeap { device: device.used(), host: host.used() }
    }

    /// The process of a worker has ended, and holds nothing any more; `worker` is the number that [`Effects::start_worker`] was given.
    pub(crate) fn worker_ended<E: Effects<Ticket = T>>(&mut self, worker: u64, effects: &mut E) {
        let owner = Owner(worker);
        self.dying.remove(&owner);
        self.contexts.values_mut().for_each(|context| context.drivers.retain(|driver| *driver != owner));
        let holdings = self.pieces.workers.remove(&owner).unwrap_or_default();
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
        self.away.remove(&owner);
        self.ask_again(effects);
    }

    /// A context ends whose worker has no driver. These processes hold the memory that counts for its owner, which counts until they have ended.
    pub(super) fn drivers_end(&mut self, owner: Owner, drivers: Vec<Owner>) {
        if !drivers.is_empty() {
            self.away.insert(owner);
        }
        let held = self.quotas.memory.device.held(owner);
        self.dying.extend(drivers.into_iter().map(|driver| (driver, held)));
    }

    /// A blob shows a piece.
    pub(super) fn show_piece(&mut self, memory: MemoryId) {
        self.pieces.shown(memory);
    }

    /// A blob that showed a piece is gone.
    pub(super) fn hide_piece<E: Effects<Ticket = T>>(&mut self, memory: MemoryId, effects: &mut E) {
        if self.pieces.let_go(memory, 1, &mut self.quotas) {
            effects.forget_memory(memory);
            self.ask_again(effects);
        }
    }

    /// A context's worker was given the descriptor of a piece.
    pub(super) fn give_piece(&mut self, ctx_id: ContextId, memory: MemoryId) {
        let owner = self.owner(Some(ctx_id));
        self.pieces.given(memory, owner);
        self.give_successor(ctx_id, memory);
    }

    /// The successor of a context's worker, if it has one, was given the descriptor of a piece.
    pub(super) fn give_successor(&mut self, ctx_id: ContextId, memory: MemoryId) {
        let successor = self.contexts.get(&ctx_id).and_then(|context| context.successor.as_ref());
        if let Some(owner) = successor.map(|successor| successor.owner) {
            self.pieces.given_to_successor(memory, owner);
        }
    }

    /// Returns the bytes that count as device memory, and those that count as host memory.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn memory_used(&self) -> (u64, u64) {
        (self.quotas.memory.device.used(), self.quotas.memory.host.used())
    }
}

/// The successor of a worker is a separate holder of pieces, for as long as two workers may have them mapped. In the end the context holds
/// the pieces of its successor. A successor is not believed more than the worker before it: it keeps nothing that the context did not hold.
impl<T> Device<T> {
    /// A successor has let go of a piece: of one that it was shown, or else of one that it takes over, which it will hold once less if it becomes
    /// the context's worker. The pieces of its predecessor are not touched.
    pub(crate) fn returned_by_successor<E: Effects<Ticket = T>>(
        &mut self,
        ctx_id: ContextId,
        memory: MemoryId,
        effects: &mut E,
    ) {
        let successor = self.contexts.get_mut(&ctx_id).and_then(|context| context.successor.as_mut());
        let Some(successor) = successor else { return };
        if self.pieces.workers.get(&successor.owner).is_some_and(|held| held.pieces.contains_key(&memory)) {
            let owner = successor.owner;
            self.returned(owner, memory, effects);
        } else if let Some(times) = successor.takes.get_mut(&memory) {
            *times = times.saturating_sub(1);
        }
    }

    /// Returns how many bytes a context can have at most in memory that only its driver uses, each allocation in whole pages.
    pub(crate) fn contents_max(&self, ctx_id: ContextId) -> u64 {
        self.credit_of(ctx_id).saturating_add(ROUNDING_MAX)
    }

    /// Returns how many bytes of memory that only its driver uses a context was granted.
    pub(crate) fn credit_of(&self, ctx_id: ContextId) -> u64 {
        let owner = self.contexts.get(&ctx_id).map(|context| context.owner);
        let credit = owner.and_then(|owner| self.pieces.workers.get(&owner)).map(|held| held.credit);
        let PerHeap { device, host } = credit.unwrap_or_default();
        device.saturating_add(host)
    }

    /// Returns the pieces that a context's worker holds, each as often as the worker was given it.
    pub(crate) fn held_pieces(&self, ctx_id: ContextId) -> Vec<MemoryId> {
        let holdings = self.pieces.workers.get(&self.owner(Some(ctx_id)));
        let pieces = holdings.into_iter().flat_map(|holdings| &holdings.pieces);
        pieces.flat_map(|(memory, times)| std::iter::repeat_n(*memory, *times as usize)).collect()
    }

    /// A successor gives credit back, which counts if it becomes the context's worker.
    pub(crate) fn credit_returned_by_successor(&mut self, ctx_id: ContextId, heap: Heap, bytes: u64) {
        let successor = self.contexts.get_mut(&ctx_id).and_then(|context| context.successor.as_mut());
        if let Some(successor) = successor {
            let returned = successor.returned.of(heap);
            *returned = returned.saturating_add(bytes);
        }
    }

    /// A successor says how much credit it knows of. Credit that its predecessor was granted beyond that, in answer to a request that is void now,
    /// is given up when the context is handed over.
    pub(crate) fn takes_credit_over(&mut self, ctx_id: ContextId, credit: PerHeap<u64>) {
        let successor = self.contexts.get_mut(&ctx_id).and_then(|context| context.successor.as_mut());
        if let Some(successor) = successor {
            successor.credit = credit;
        }
    }

    /// A successor says that it holds pieces from its predecessor, each as often as the message names it. It gets no piece that the
    /// predecessor did not hold, and none more often.
    pub(crate) fn takes_over(&mut self, ctx_id: ContextId, pieces: &[MemoryId]) {
        let Some(context) = self.contexts.get_mut(&ctx_id) else { return };
        let Some(successor) = &mut context.successor else { return };
        let Some(holdings) = self.pieces.workers.get(&context.owner) else { return };
        for memory in pieces {
            // A piece that the predecessor did not hold is not even remembered.
            let Some(held) = holdings.pieces.get(memory) else { continue };
            let times = successor.takes.entry(*memory).or_default();
            *times = (*times + 1).min(*held);
        }
    }

    /// A context has been handed over: it holds the pieces that its successor takes over and was shown, and the credit that the successor knows
    /// of. Rings stay.
    pub(crate) fn handed_over<E: Effects<Ticket = T>>(&mut self, ctx_id: ContextId, effects: &mut E) {
        let Some(context) = self.contexts.get_mut(&ctx_id) else { return };
        let Some(Successor { owner: successor, takes, mut credit, mut returned }) = context.successor.take()
        else {
            return;
        };
        context.rests = false;
        if context.drivers.contains(&successor) {
            // The new worker has a driver, so the context's memory counts for it alone.
            context.drivers.clear();
        }
        let owner = context.owner;
        // The worker that asked is gone.
        self.waits_no_more(ctx_id);
        let shown = self.pieces.workers.remove(&successor).unwrap_or_default().pieces;
        let holdings = self.pieces.workers.entry(owner).or_default();
        for heap in [Heap::Device, Heap::Host] {
            let (held, left) = (holdings.credit.of(heap), credit.of(heap).saturating_sub(*returned.of(heap)));
            let surplus = held.saturating_sub(left);
            *held -= surplus;
            self.quotas.memory.of(heap).give_back(owner, surplus);
        }
        let before = std::mem::take(&mut holdings.pieces);
        let taken = |memory: &MemoryId, held: u64| takes.get(memory).map_or(0, |times| held.min(*times));
        let kept = before.iter().map(|(memory, held)| (*memory, taken(memory, *held)));
        holdings.pieces = kept.filter(|(_, times)| *times > 0).collect();
        for (memory, times) in &shown {
            *holdings.pieces.entry(*memory).or_default() += times;
        }
        for memory in shown.into_keys() {
            self.pieces.count_for(memory, successor, owner, &mut self.quotas);
        }
        for (memory, held) in before {
            let left = held - taken(&memory, held);
            if left > 0 && self.pieces.let_go(memory, left, &mut self.quotas) {
                effects.forget_memory(memory);
            } else if !self.holds(owner, memory) {
                self.pieces.pass_on(memory, owner, &mut self.quotas);
            }
        }
        self.ask_again(effects);
    }

    fn holds(&self, owner: Owner, memory: MemoryId) -> bool {
        self.pieces.workers.get(&owner).is_some_and(|holdings| holdings.pieces.contains_key(&memory))
    }
}
