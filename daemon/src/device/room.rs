//! The part of the GPUs' memory that the VM's contexts may hold where several VMs are promised more than there is. Contexts that are swapped
//! out hold nothing of it, though what they had counts for the VM's quotas. A request that does not fit waits until the broker lets the VM have more.

use super::pieces::Waiting;
use super::quota::Owner;
use super::{Device, Effects};
use config::{Heap, Wanted};
use protocol::ids::ContextId;

/// The name of the limit on the time for which a request waits.
pub(super) const LIMIT: &str = "memory-wait";

impl<T> Device<T> {
    /// Contexts may hold so many bytes from now on. What waits asks again.
    pub(crate) fn set_room<E: Effects<Ticket = T>>(&mut self, most: u64, effects: &mut E) {
        self.room = most;
        self.ask_again(effects);
    }

    /// Nothing of a context is on a GPU any more; or it is about to be there again.
    pub(crate) fn is_away<E: Effects<Ticket = T>>(&mut self, ctx_id: ContextId, away: bool, effects: &mut E) {
        let Some(context) = self.contexts.get_mut(&ctx_id) else { return };
        context.is_away = away;
        if away {
            self.ask_again(effects);
        }
    }

    /// Bytes of the GPUs' memory that contexts hold which are not swapped out, and those that are about to be lost.
    pub(crate) fn present_memory(&self) -> u64 {
        let away = self.contexts.values().filter(|context| context.is_away);
        let away: u64 = away.map(|context| self.quotas.memory.device.held(context.owner())).sum();
        self.quotas.memory.device.used().saturating_sub(away)
    }

    /// Bytes of the GPUs' memory that count for a context.
    pub(crate) fn device_memory_of(&self, ctx_id: ContextId) -> u64 {
        self.quotas.memory.device.held(self.owner(Some(ctx_id)))
    }

    /// Returns whether a context that is swapped out may come back.
    pub(crate) fn may_come_back(&self, ctx_id: ContextId) -> bool {
        let is_away = self.contexts.get(&ctx_id).is_some_and(|context| context.is_away);
        let fits = || self.room.saturating_sub(self.present_memory()) >= self.device_memory_of(ctx_id);
        self.room == u64::MAX || is_away && fits()
    }

    /// Returns the first context that waits for memory, and for how many bytes. `coming` are swapped out, and want to come back.
    pub(crate) fn first_lack(&self, coming: &[ContextId]) -> Option<(ContextId, u64)> {
        let asked = self.waiting.iter().filter(|waiting| self.lacks_only_room(waiting));
        let mut asked = asked.filter_map(|waiting| Some((waiting.ctx_id, least_of(waiting.wanted)?)));
        let away = |ctx_id: &&ContextId| self.contexts.get(ctx_id).is_some_and(|context| context.is_away);
        let mut coming = coming.iter().filter(away).map(|ctx_id| (*ctx_id, self.device_memory_of(*ctx_id)));
        asked.next().or_else(|| coming.next())
    }

    /// Returns whether a context waits for memory that it has asked for.
    pub(crate) fn awaits_memory(&self, ctx_id: ContextId) -> bool {
        self.waiting.iter().any(|waiting| waiting.ctx_id == ctx_id)
    }

    /// The first request that waits for room has waited for long enough. Returns whether there was one.
    pub(crate) fn refuse_first<E: Effects<Ticket = T>>(&mut self, effects: &mut E) -> bool {
        let first = self.waiting.iter().position(|waiting| self.lacks_only_room(waiting));
        let refused = first.map(|first| self.waiting.remove(first));
        refused.iter().for_each(|it| effects.refuse_memory(it.ctx_id, it.request, LIMIT));
        refused.is_some()
    }

    /// Returns what of a request can be answered now: all of it, or without what was to be had in advance. Nothing if it has to wait for room, and not if
    /// a quota is in its way.
    pub(super) fn within_room(&self, owner: Owner, wanted: Wanted) -> Option<Wanted> {
        let Some(least) = least_of(wanted).filter(|_| self.room != u64::MAX) else { return Some(wanted) };
        if self.quotas.memory.device.check(owner, least, &[]).is_err() {
            return Some(wanted);
        }
        let room = self.room.saturating_sub(self.present_memory());
        match wanted {
            _ if least > room => None,
            Wanted::Credit { heap, least, bytes } => {
                Some(Wanted::Credit { heap, least, bytes: bytes.min(room) })
            }
            other => Some(other),
        }
    }

    fn lacks_only_room(&self, Waiting { ctx_id, wanted, .. }: &Waiting) -> bool {
        self.within_room(self.owner(Some(*ctx_id)), *wanted).is_none()
    }
}

/// Bytes of the GPU's own memory that a request cannot do without.
fn least_of(wanted: Wanted) -> Option<u64> {
    match wanted {
        Wanted::Piece { heap: Heap::Device, bytes } => Some(bytes),
        Wanted::Credit { heap: Heap::Device, least, .. } => Some(least),
        _ => None,
    }
}
