//! Swaps contexts out and in: hand-overs to workers without a driver, and from them to workers with one.
//!
//! A context that is swapped out goes on as soon as one of its rings has a command for the driver (`worker::swapped_out`), or its VM's kernel sends
//! something else than resources. That waits in the device process until a worker with a driver has the context.

use super::handover::{Asker, Purpose};
use super::run::Server;
use super::workers::SwappedOut;
use protocol::ids::ContextId;
use std::time::Instant;

impl Server {
    /// Swaps contexts out that operators want swapped out, or that are idle for long.
    pub(super) fn swaps_due(&mut self, now: Instant) {
        for ctx_id in std::mem::take(&mut self.world.swaps_wanted) {
            self.hand_over(ctx_id, None, (Asker::Operator, Purpose::SwapOut));
        }
        self.swap_in_awaited();
        let Some(idle) = &mut self.world.idle else { return };
        for ctx_id in idle.due(self.world.hangs.activity(), now) {
            let workers = &self.world.workers;
            if !workers.has_successor(ctx_id) && !workers.is_swapped_out(ctx_id) {
                self.hand_over(ctx_id, None, (Asker::Itself, Purpose::SwapOut));
            }
        }
    }

    /// Swaps contexts in for which something has come. To be called before anything else comes.
    pub(super) fn swap_in_awaited(&mut self) {
        for ctx_id in self.world.workers.take_awaited() {
            self.swap_in(ctx_id);
        }
    }

    /// A ring of a context that is swapped out has a command for the driver.
    pub(super) fn wakes(&mut self, ctx_id: ContextId) {
        match self.world.workers.is_swapped_out(ctx_id) {
            true => self.swap_in(ctx_id),
            false => self.lose(ctx_id, "its worker asks for a driver that it has"),
        }
    }

    pub(super) fn swap_in(&mut self, ctx_id: ContextId) {
        if !self.world.workers.is_swapped_out(ctx_id) || self.world.workers.has_successor(ctx_id) {
            return;
        }
        if self.device.may_come_back(ctx_id) {
            self.device.is_away(ctx_id, false, &mut self.world);
            self.hand_over(ctx_id, None, (Asker::Itself, Purpose::SwapIn));
        } else {
            self.world.room.wait(ctx_id);
        }
    }

    /// Returns how a context is swapped out.
    pub(super) fn swapped_out(&self, ctx_id: ContextId, asker: Asker) -> SwappedOut {
        SwappedOut { contents_max: self.device.contents_max(ctx_id), is_forced: asker == Asker::Broker }
    }
}
