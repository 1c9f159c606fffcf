//! The account of one VM in the ledger: what it may hold, what it says, and its turn.

use super::TURN;
use crate::ipc::RoomState;
use sched::Nanos;
use serde::{Deserialize, Serialize};

/// Bytes that are copied per nanosecond, as a guess.
const COPIED: u64 = 2;
/// Time in which a VM gives up memory, in nanoseconds, beyond twice the time of copying it: others are asked as well otherwise. A turn stands
/// still for no longer in all.
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
    /// The time at which its turn is over unless it stands still; and what was left of the turn when the VM began to wait.
    pub(super) turn_until: Nanos,
    pub(super) turn_left: Nanos,
    /// The time at which its turn began, if it has never stood still, and the length that the turn keeps however many others wait.
    pub(super) turn_from: Nanos,
    pub(super) turn_least: Nanos,
    /// All that the VM wants fits beside what others keep. Its turn stands still meanwhile, for `still_left` at most.
    pub(super) fits: bool,
    pub(super) still_left: Nanos,
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
        let patience = GIVE_UP_PATIENCE.saturating_add(copying(self.owes()).saturating_mul(2));
        (self.owes() > 0 || self.is_open()) && now.saturating_sub(self.told) >= patience
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
        let most = GIVE_UP_PATIENCE.saturating_add(copying(self.state.lacks).saturating_mul(2));
        let said = if self.allocates() { 0 } else { self.state.back_ms };
        said.saturating_mul(1_000_000).min(most)
    }

    /// Bytes that the context would hold which waits.
    pub(super) fn least(&self) -> u64 {
        self.state.holds.saturating_add(self.state.lacks)
    }

    /// Returns for how long it has waited.
    pub(super) fn waited(&self, now: Nanos) -> Nanos {
        self.since.map_or(0, |since| now.saturating_sub(since))
    }

    /// Returns whether its turn stands still, if it has it.
    pub(super) fn is_still(&self, now: Nanos) -> bool {
        self.fits && self.since.is_some() && self.waited(now) < self.still_left
    }

    pub(super) fn has_turn(&self, now: Nanos) -> bool {
        if self.is_still(now) { self.turn_left > 0 } else { self.turn_until > now }
    }

    /// Returns whether a context waits that holds memory. Until it has what it waits for, it may not be able to give any up.
    pub(super) fn allocates(&self) -> bool {
        self.state.holds > 0
    }

    /// Has the VM wait from now on.
    pub(super) fn begin_to_wait(&mut self, now: Nanos) {
        if self.since.is_none() {
            (self.since, self.turn_left) = (Some(now), self.turn_until.saturating_sub(now));
        }
    }

    /// Ends the VM's wait. A new turn has this length, of which it keeps the least however many others wait; one that has begun goes on.
    pub(super) fn end_to_wait(&mut self, (turn, least): (Nanos, Nanos), now: Nanos) {
        if self.is_still(now) {
            let until = now.saturating_add(self.turn_left);
            self.turn_from = self.turn_from.saturating_add(until.saturating_sub(self.turn_until));
            self.turn_until = until;
        }
        if self.since.is_some() {
            let stood = if self.fits { self.waited(now) } else { 0 };
            self.still_left = self.still_left.saturating_sub(stood);
            if self.turn_until <= now {
                (self.turn_until, self.still_left) = (now.saturating_add(turn), GIVE_UP_PATIENCE);
                (self.turn_from, self.turn_least) = (now, turn.min(least));
            }
        }
        (self.since, self.makes_room) = (None, None);
    }

    /// The VM has a turn of this length from now on, if what is left of its turn is not longer.
    pub(super) fn has_at_least(&mut self, turn: Nanos, now: Nanos) {
        let until = now.saturating_add(turn);
        if until > self.turn_until {
            (self.turn_until, self.turn_from, self.turn_least) = (until, now, turn.min(TURN));
        }
    }

    /// The VM's turn is no longer than this, or than its least.
    pub(super) fn shorten_turn(&mut self, most: Nanos) {
        let end = self.turn_from.saturating_add(most.max(self.turn_least));
        let cut = self.turn_until.saturating_sub(end);
        self.turn_until -= cut;
        self.turn_left = self.turn_left.saturating_sub(cut);
    }

    pub(super) fn is_on(&self, gpu: usize) -> bool {
        self.gpus.contains(&gpu)
    }

    pub(super) fn shares_with(&self, other: &Self) -> bool {
        self.gpus.iter().any(|gpu| other.is_on(*gpu))
    }
}

/// Time in which so many bytes are copied, about.
pub(super) fn copying(bytes: u64) -> Nanos {
    bytes / COPIED
}
