//! The GPU memory that the VM may have where several VMs are promised more than exists: how much of it the VM holds, and which requests wait for it.

use super::super::context::Context;
use super::super::pieces::Waiting;
use super::super::quota::Owner;
use super::super::{Device, Effects};
use config::Wanted;
use protocol::ids::ContextId;

/// A context that waits for GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    pub(crate) ctx_id: ContextId,
    /// The request that waits; none if the context is swapped out and wants to come back.
    pub(crate) request: Option<u32>,
    /// Bytes for which the context waits.
    pub(crate) bytes: u64,
}

/// The GPU memory that the VM's contexts may hold where several VMs are promised more than exists. Contexts that are swapped out hold none of
/// it, though their memory still counts for quotas. A request that does not fit waits until the broker lets the VM have more.
impl<T> Device<T> {
    /// Lets contexts hold at most so many bytes from now on. The waiting requests ask again.
    pub(crate) fn set_room<E: Effects<Ticket = T>>(&mut self, most: u64, effects: &mut E) {
        self.room = most;
        self.ask_again(effects);
    }

    /// No memory of a context is on a GPU any more (`away`), or the context is about to come back.
    pub(crate) fn is_away<E: Effects<Ticket = T>>(&mut self, ctx_id: ContextId, away: bool, effects: &mut E) {
        let Some(owner) = self.contexts.get(&ctx_id).map(Context::owner) else { return };
        if away {
            self.away.insert(owner);
            self.ask_again(effects);
        } else {
            self.away.remove(&owner);
        }
    }

    /// Returns the bytes of GPU memory that ending workers hold, and contexts that are not swapped out.
    pub(crate) fn present_memory(&self) -> u64 {
        let device = &self.quotas.memory.device;
        let away: u64 = self.away.iter().map(|owner| device.held(*owner)).sum();
        device.used().saturating_sub(away).saturating_add(self.dying_memory())
    }

    /// Returns how many of the present bytes come free without a swap-out, as the processes that hold them end.
    pub(crate) fn dying_memory(&self) -> u64 {
        self.dying.values().sum()
    }

    /// Returns the bytes of GPU memory that contexts may hold in addition; `u64::MAX` if there is no bound.
    pub(super) fn free_room(&self) -> u64 {
        match self.room {
            u64::MAX => u64::MAX,
            room => room.saturating_sub(self.present_memory()),
        }
    }

    fn context_is_away(&self, ctx_id: ContextId) -> bool {
        self.contexts.get(&ctx_id).is_some_and(|context| self.away.contains(&context.owner))
    }

    /// Returns the bytes of GPU memory that count for a context.
    pub(crate) fn device_memory_of(&self, ctx_id: ContextId) -> u64 {
        self.quotas.memory.device.held(self.owner(Some(ctx_id)))
    }

    /// Returns whether a context that is swapped out may come back.
    pub(crate) fn may_come_back(&self, ctx_id: ContextId) -> bool {
        let free = self.free_room();
        free == u64::MAX || self.context_is_away(ctx_id) && free >= self.device_memory_of(ctx_id)
    }

    /// Returns all requests and contexts that wait for memory. The contexts in `coming` are swapped out, and want to come back.
    pub(crate) fn lacks(&self, coming: &[ContextId]) -> Vec<Lack> {
        let free = self.free_room();
        let lacks_only_room = |Waiting { ctx_id, wanted, .. }: &&Waiting| {
            self.within_room(self.owner(Some(*ctx_id)), *wanted, free).is_none()
        };
        let asked = self.waiting.iter().filter(lacks_only_room);
        let asked = asked.filter_map(|Waiting { ctx_id, request, wanted, .. }| {
            Some(Lack { ctx_id: *ctx_id, request: Some(*request), bytes: wanted.least_of_gpu()? })
        });
        let away = coming.iter().filter(|ctx_id| self.context_is_away(**ctx_id));
        let away =
            away.map(|ctx_id| Lack { ctx_id: *ctx_id, request: None, bytes: self.device_memory_of(*ctx_id) });
        asked.chain(away).collect()
    }

    /// Returns whether a context waits for memory that it has asked for.
    pub(crate) fn awaits_memory(&self, ctx_id: ContextId) -> bool {
        self.waiting.iter().any(|waiting| waiting.ctx_id == ctx_id)
    }

    /// Refuses a request that waits. Returns whether there was one.
    pub(crate) fn refuse_waiting<E: Effects<Ticket = T>>(&mut self, lack: &Lack, effects: &mut E) -> bool {
        lack.request.is_some_and(|request| self.memory_wanted_no_more(lack.ctx_id, request, effects))
    }

    /// Returns the part of a request that fits into the `free` bytes, which may be less than the whole; none if the request has to wait. A
    /// request that a quota refuses is returned whole.
    pub(super) fn within_room(&self, owner: Owner, wanted: Wanted, free: u64) -> Option<Wanted> {
        let Some(least) = wanted.least_of_gpu().filter(|_| free != u64::MAX) else { return Some(wanted) };
        if self.quotas.memory.device.check(owner, least, &[]).is_err() {
            return Some(wanted);
        }
        match wanted {
            _ if least > free => None,
            Wanted::Credit { heap, least, bytes } => {
                Some(Wanted::Credit { heap, least, bytes: bytes.min(free) })
            }
            other => Some(other),
        }
    }
}
