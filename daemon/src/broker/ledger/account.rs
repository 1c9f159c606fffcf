//! The account of one VM in the ledger: what it may hold, what it says, and its turn.

use super::TURN;
use super::turn::Turn;
use crate::ipc::RoomState;
use sched::Nanos;
use serde::{Deserialize, Serialize};

/// Bytes that are copied per nanosecond, as a guess.
const COPIED: u64 = 2;
/// Time in which a VM gives up memory, in nanoseconds, beyond twice the time of copying it: others are asked as well otherwise.
pub(super) const GIVE_UP_PATIENCE: Nanos = 10_000_000_000;

/// The memory of one VM: on each GPU that it uses, it counts whole.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Account {
    pub(super) gpus: Vec<usize>,
    pub(super) weight: u32,
    pub(super) reserved: u64,
    /// Bytes that it may hold, as it was told last, and whether busy contexts are swapped out for that.
    pub(super) may: u64,
    pub(super) forced: bool,
    /// The number of what it was told last, and the bytes that all VMs may hold together, as it was told.
    pub(super) number: u64,
    pub(super) total: u64,
    /// The highest limit that it may still keep to, as it has not confirmed a lower one.
    pub(super) heard: u64,
    /// The state that it told last, without what it cannot be.
    pub(super) state: RoomState,
    /// The time since which it waits.
    pub(super) since: Option<Nanos>,
    /// The time at which others began to make room for it: when they were told, and anew when busy contexts are to go.
    pub(super) makes_room: Option<Nanos>,
    /// The time at which it was told to do something that it has to have done in time.
    pub(super) told: Nanos,
    pub(super) turn: Turn,
    /// The time until which it keeps all of what is reserved for it, used or not.
    pub(super) keeps_until: Nanos,
}

impl Account {
    /// Bytes that count for it: what it may hold, or still holds.
    pub(super) fn counts(&self) -> u64 {
        self.may.max(self.heard)
    }

    /// Returns whether it has not confirmed what it was told last.
    pub(super) fn is_open(&self) -> bool {
        self.state.order != self.number
    }

    /// Bytes that it is never told to give up: the reserved ones that it holds, or may be about to use.
    pub(super) fn floor(&self, now: Nanos) -> u64 {
        let has_heard = !self.is_open() && self.keeps_until <= now;
        self.reserved.min(if has_heard { self.state.held.min(self.may) } else { self.may })
    }

    /// Bytes that another VM cannot have of what counts for it.
    pub(super) fn keeps(&self, now: Nanos) -> u64 {
        if self.is_overdue(now) { self.counts() } else { self.floor(now) }
    }

    /// Bytes that it has been told to give up, and has not.
    pub(super) fn owes(&self) -> u64 {
        self.counts() - self.may
    }

    /// Returns whether it has not done in time what it was told: to give something up, or just to confirm.
    pub(super) fn is_overdue(&self, now: Nanos) -> bool {
        (self.owes() > 0 || self.is_open()) && now.saturating_sub(self.told) >= patience(self.owes())
    }

    /// Bytes that it has been told to give up, and is about to.
    pub(super) fn gives_up(&self, now: Nanos) -> u64 {
        if self.is_overdue(now) { 0 } else { self.owes() }
    }

    /// Has the VM hold `bytes` less. One that owes something already gets no more time, unless busy contexts are to go from now on.
    pub(super) fn lower(&mut self, bytes: u64, forced: bool, now: Nanos) {
        if self.owes() == 0 || forced && !self.forced {
            self.told = now;
        }
        self.heard = self.counts();
        (self.may, self.forced) = (self.may - bytes, forced);
    }

    /// Has the VM hold so much, which is not less than before.
    pub(super) fn raise(&mut self, may: u64, now: Nanos) {
        (self.may, self.forced, self.told) = (may, false, now);
        self.heard = self.counts();
        self.number += 1;
    }

    /// Bytes that it would hold if it got what it waits for.
    pub(super) fn wanted(&self) -> u64 {
        self.state.held.saturating_add(self.state.lacks)
    }

    /// Returns the time that the VM says a context needs from when it may come back to when its program goes on, if that can be.
    pub(super) fn comes_back(&self) -> Nanos {
        let said = if self.allocates() { 0 } else { self.state.back_ms };
        said.saturating_mul(1_000_000).min(patience(self.state.lacks))
    }

    /// Bytes that the context would hold which waits.
    pub(super) fn least(&self) -> u64 {
        self.state.holds.saturating_add(self.state.lacks)
    }

    /// Returns for how long it has waited.
    pub(super) fn waited(&self, now: Nanos) -> Nanos {
        self.since.map_or(0, |since| now.saturating_sub(since))
    }

    /// Returns whether a context waits that holds memory. Until it has what it waits for, it may not be able to give any up.
    pub(super) fn allocates(&self) -> bool {
        self.state.holds > 0
    }

    /// Has the VM wait from now on. Its turn stands still if what it wants fits beside what others keep, until that is so no more.
    pub(super) fn begin_to_wait(&mut self, fits: bool, now: Nanos) {
        if self.since.is_none() {
            self.since = Some(now);
            self.turn.stand_still(now);
        }
        if !fits {
            self.turn.run_on(now);
        }
    }

    /// The wait is for something else from now on. The turn does not stand still for that.
    pub(super) fn wait_anew(&mut self, now: Nanos) {
        (self.since, self.makes_room) = (Some(now), None);
        self.turn.run_on(now);
    }

    /// Ends the VM's wait. It has a new turn then, unless the one that it has goes on.
    pub(super) fn end_to_wait(&mut self, new: Turn, now: Nanos) {
        self.turn.run_on(now);
        if self.since.is_some() && self.turn.is_over(now) {
            self.turn = new;
        }
        (self.since, self.makes_room) = (None, None);
    }

    /// The VM has a turn of this length from now on, if what is left of its turn is not longer.
    pub(super) fn has_at_least(&mut self, length: Nanos, now: Nanos) {
        if now.saturating_add(length) > self.turn.end(now) {
            self.turn = Turn::begin(length, TURN, now);
        }
    }

    pub(super) fn is_on(&self, gpu: usize) -> bool {
        self.gpus.contains(&gpu)
    }

    pub(super) fn shares_with(&self, other: &Self) -> bool {
        self.gpus.iter().any(|gpu| other.is_on(*gpu))
    }
}

/// Time that a VM has for so many bytes to go, or to come.
fn patience(bytes: u64) -> Nanos {
    GIVE_UP_PATIENCE.saturating_add(copying(bytes).saturating_mul(2))
}

/// Time in which so many bytes are copied, about.
pub(super) fn copying(bytes: u64) -> Nanos {
    bytes / COPIED
}
