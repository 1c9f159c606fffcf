//! The account of one VM in the ledger: its limit, its reports, and its turn.

use super::TURN;
use super::turn::Turn;
use crate::ipc::RoomState;
use sched::Nanos;
use serde::{Deserialize, Serialize};

/// Bytes that are copied per nanosecond, as a guess.
const COPIED: u64 = 2;
/// The time in which a VM has to give up memory, in nanoseconds, beyond twice the time of copying it. After that, other VMs are asked.
pub(super) const GIVE_UP_PATIENCE: Nanos = 10_000_000_000;

/// The memory of one VM. The whole of it counts on each GPU that the VM uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Account {
    pub(super) gpus: Vec<usize>,
    pub(super) weight: u32,
    pub(super) reserved: u64,
    /// The bytes that the VM may hold, as it was told last, and whether it swaps out busy contexts to reach that limit.
    pub(super) may: u64,
    pub(super) forced: bool,
    /// The number of the last order to the VM, and the bytes that all VMs may hold together according to that order.
    pub(super) number: u64,
    pub(super) total: u64,
    /// The highest limit that the VM may still use, because it has not confirmed a lower one.
    pub(super) heard: u64,
    /// The state that the VM reported last, bounded to possible values.
    pub(super) state: RoomState,
    /// The time since which the VM waits.
    pub(super) since: Option<Nanos>,
    /// The time at which other VMs began to make room for this VM: when they were told, and anew when they are told to swap out busy contexts.
    pub(super) makes_room: Option<Nanos>,
    /// The time at which the VM was told an order that it has to obey in time.
    pub(super) told: Nanos,
    pub(super) turn: Turn,
    /// The time until which the VM keeps all memory that is reserved for it, used or not.
    pub(super) keeps_until: Nanos,
}

impl Account {
    /// Returns the bytes that count as held by the VM: its limit, or a higher one that it may still use.
    pub(super) fn counts(&self) -> u64 {
        self.may.max(self.heard)
    }

    /// Returns whether the VM has not confirmed its last order.
    pub(super) fn is_open(&self) -> bool {
        self.state.order != self.number
    }

    /// Returns the bytes that the VM is never told to give up: the reserved bytes that it holds, or may be about to use.
    pub(super) fn floor(&self, now: Nanos) -> u64 {
        let has_heard = !self.is_open() && self.keeps_until <= now;
        self.reserved.min(if has_heard { self.state.held.min(self.may) } else { self.may })
    }

    /// Returns the part of the VM's counted bytes that no other VM can get.
    pub(super) fn keeps(&self, now: Nanos) -> u64 {
        if self.is_overdue(now) { self.counts() } else { self.floor(now) }
    }

    /// Returns the bytes that the VM was told to give up, and has not given up.
    pub(super) fn owes(&self) -> u64 {
        self.counts() - self.may
    }

    /// Returns whether the VM has missed the time for its last order: to give up memory, or only to confirm.
    pub(super) fn is_overdue(&self, now: Nanos) -> bool {
        (self.owes() > 0 || self.is_open()) && now.saturating_sub(self.told) >= patience(self.owes())
    }

    /// Returns the bytes that the VM was told to give up, and is about to give up.
    pub(super) fn gives_up(&self, now: Nanos) -> u64 {
        if self.is_overdue(now) { 0 } else { self.owes() }
    }

    /// Has the VM hold `bytes` less. A VM that already owes bytes gets no more time, unless it has to swap out busy contexts from now on.
    pub(super) fn lower(&mut self, bytes: u64, forced: bool, now: Nanos) {
        if self.owes() == 0 || forced && !self.forced {
            self.told = now;
        }
        self.heard = self.counts();
        (self.may, self.forced) = (self.may - bytes, forced);
    }

    /// Lets the VM hold `may` bytes, which is not less than before.
    pub(super) fn raise(&mut self, may: u64, now: Nanos) {
        (self.may, self.forced, self.told) = (may, false, now);
        self.heard = self.counts();
        self.number += 1;
    }

    /// Returns the bytes that the VM would hold if it got the memory that it waits for.
    pub(super) fn wanted(&self) -> u64 {
        self.state.held.saturating_add(self.state.lacks)
    }

    /// Returns the time that a context needs from when it may come back to when its program goes on, as the VM says, within bounds.
    pub(super) fn comes_back(&self) -> Nanos {
        let said = if self.allocates() { 0 } else { self.state.back_ms };
        said.saturating_mul(1_000_000).min(patience(self.state.lacks))
    }

    /// Returns the bytes that the waiting context would hold.
    pub(super) fn least(&self) -> u64 {
        self.state.holds.saturating_add(self.state.lacks)
    }

    /// Returns for how long the VM has waited.
    pub(super) fn waited(&self, now: Nanos) -> Nanos {
        self.since.map_or(0, |since| now.saturating_sub(since))
    }

    /// Returns whether the waiting context holds memory. Until it gets the memory that it waits for, it may be unable to give any up.
    pub(super) fn allocates(&self) -> bool {
        self.state.holds > 0
    }

    /// Has the VM wait from now on. Its turn stands still until the wanted memory does not fit (`fits`) beside what others keep.
    pub(super) fn begin_to_wait(&mut self, fits: bool, now: Nanos) {
        if self.since.is_none() {
            self.since = Some(now);
            self.turn.stand_still(now);
        }
        if !fits {
            self.turn.run_on(now);
        }
    }

    /// Begins the wait for another context. The turn does not stand still for this wait.
    pub(super) fn wait_anew(&mut self, now: Nanos) {
        (self.since, self.makes_room) = (Some(now), None);
        self.turn.run_on(now);
    }

    /// Ends the VM's wait. The VM gets the `new` turn if its present turn is over.
    pub(super) fn end_to_wait(&mut self, new: Turn, now: Nanos) {
        self.turn.run_on(now);
        if self.since.is_some() && self.turn.is_over(now) {
            self.turn = new;
        }
        (self.since, self.makes_room) = (None, None);
    }

    /// Gives the VM a turn of this length from now on, unless the rest of its present turn is longer.
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

/// Returns the time that a VM has for swapping so many bytes out or in.
fn patience(bytes: u64) -> Nanos {
    GIVE_UP_PATIENCE.saturating_add(copying(bytes).saturating_mul(2))
}

/// Returns the approximate time in which so many bytes are copied.
pub(super) fn copying(bytes: u64) -> Nanos {
    bytes / COPIED
}
