//! The GPU memory that the broker lets a VM have, and the contexts that leave the GPU for it or wait for it.
//!
//! This file knows no clock: the caller passes the time in.

use super::waits::{PassedWait, Waits};
use crate::ipc::{RoomOrder, RoomState};
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Time for which a context that could not be swapped out is left alone: at first, and at most.
const STAYS_FOR: Duration = Duration::from_secs(1);
const STAYS_FOR_MAX: Duration = Duration::from_secs(60);
/// Time between two states that the broker is told, if it has nothing to decide.
const TELL_AFTER: Duration = Duration::from_millis(50);

/// The part of the GPUs' memory that the VM may have.
#[derive(Debug, Default)]
pub(in crate::serve) struct Room {
    /// The broker's last order; none if it shares no memory out.
    pub(in crate::serve) order: Option<RoomOrder>,
    /// Busy contexts are swapped out too, until the VM has come down to its limit.
    pub(in crate::serve) forced: bool,
    /// The broker's last order is not carried out yet.
    pub(in crate::serve) is_news: bool,
    /// The state that the broker was told last, and the time of that.
    pub(in crate::serve) told: Option<(RoomState, Instant)>,
    /// The time at which the broker is told of later changes.
    pub(in crate::serve) tell_at: Option<Instant>,
    /// Contexts that are swapped out and want to come back, in the order in which they came.
    pub(in crate::serve) waiting: Vec<ContextId>,
    /// The times for which contexts have waited.
    pub(in crate::serve) waits: Waits,
    /// The time that the context which came back last took to come back, in milliseconds.
    pub(in crate::serve) back_ms: u64,
    /// Contexts that are swapped out and whose workers with a driver have not ended yet, by the numbers of these workers.
    pub(in crate::serve) leaving: FxHashMap<u64, ContextId>,
    /// Contexts that could not be swapped out.
    pub(in crate::serve) stays: FxHashMap<ContextId, Stay>,
    /// The time of the next look for contexts that can be swapped out.
    pub(in crate::serve) again: Option<Instant>,
}

/// The part of the GPUs' memory, and the contexts that wait for it, written down for another process. The other process finds out by itself which
/// contexts cannot be swapped out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::serve) struct PassedRoom {
    order: RoomOrder,
    waiting: Vec<ContextId>,
    waits: Vec<PassedWait>,
    back_ms: u64,
}

/// A context that could not be swapped out.
#[derive(Clone, Copy, Debug)]
pub(in crate::serve) struct Stay {
    /// The time until which it is left alone.
    pub(in crate::serve) until: Instant,
    /// The time for which it was left alone last.
    pause: Duration,
}

impl Room {
    /// Makes the state of a VM that may hold nothing until the broker allows it.
    pub(in crate::serve) fn closed() -> Self {
        let order = RoomOrder { total: u64::MAX, wait_ms: u64::MAX, ..RoomOrder::default() };
        Self { order: Some(order), is_news: true, ..Self::default() }
    }

    /// Writes the state down for another process; returns none if the broker shares no memory out.
    pub(in crate::serve) fn pass_on(&self, now: Instant) -> Option<PassedRoom> {
        let (waiting, waits, back_ms) = (self.waiting.clone(), self.waits.pass_on(now), self.back_ms);
        Some(PassedRoom { order: self.order?, waiting, waits, back_ms })
    }

    /// Goes on with the state of another process, until the broker gives another order.
    pub(in crate::serve) fn resume(&mut self, passed: PassedRoom, now: Instant) {
        let PassedRoom { order, waiting, waits, back_ms } = passed;
        self.limit(order);
        self.waits.resume(waits, now);
        (self.waiting, self.back_ms) = (waiting, back_ms);
    }

    /// The broker lets the VM have so much.
    pub(in crate::serve) fn limit(&mut self, order: RoomOrder) {
        (self.order, self.forced, self.is_news) = (Some(order), order.forced, true);
        // The broker gets an answer in any case.
        (self.told, self.again) = (None, None);
    }

    /// Returns whether the broker is to be told of a state now: at once if more or less is lacking, or if the VM has come down to its limit;
    /// otherwise a while after the broker was last told of one.
    pub(in crate::serve) fn is_to_tell(&mut self, state: RoomState, now: Instant) -> bool {
        self.tell_at = None;
        let Some(RoomOrder { most, .. }) = self.order.filter(|order| order.number > 0) else { return false };
        let Some((told, at)) = self.told.filter(|(told, _)| *told != state) else {
            return self.told.is_none();
        };
        let lacks = |state: RoomState| (state.lacks, state.holds, state.order);
        let has_given_up = told.held > most && state.held <= most;
        if lacks(told) != lacks(state) || has_given_up || now >= at + TELL_AFTER {
            return true;
        }
        self.tell_at = Some(at + TELL_AFTER);
        false
    }

    /// A context has been swapped out; its worker with a driver has this number, and ends.
    pub(in crate::serve) fn leaves(&mut self, ctx_id: ContextId, number: Option<u64>) {
        self.leaving.extend(number.map(|number| (number, ctx_id)));
        self.stays.remove(&ctx_id);
        // The context asks anew for its memory when it is back, as if for the first time.
        self.waits.ends(ctx_id);
    }

    /// A context has ended. A later context of the same number begins without a record.
    pub(in crate::serve) fn ends(&mut self, ctx_id: ContextId) {
        self.leaving.retain(|_, leaving| *leaving != ctx_id);
        self.waiting.retain(|waiting| *waiting != ctx_id);
        self.waits.ends(ctx_id);
        self.stays.remove(&ctx_id);
    }

    /// A context that is swapped out wants to come back.
    pub(in crate::serve) fn wait(&mut self, ctx_id: ContextId) {
        if !self.waits(ctx_id) {
            self.waiting.push(ctx_id);
        }
    }

    /// Returns whether a context waits for memory.
    pub(in crate::serve) fn waits(&self, ctx_id: ContextId) -> bool {
        self.waiting.contains(&ctx_id)
    }

    /// A context could not be swapped out: leaves it alone for a while, for twice as long each time.
    pub(in crate::serve) fn stays(&mut self, ctx_id: ContextId, now: Instant) {
        self.stays.retain(|_, stay| now < stay.until + STAYS_FOR_MAX);
        let before = self.stays.get(&ctx_id).map(|stay| stay.pause);
        let pause = before.map_or(STAYS_FOR, |pause| (pause * 2).min(STAYS_FOR_MAX));
        self.stays.insert(ctx_id, Stay { until: now + pause, pause });
    }

    /// Returns whether a context is left alone, as it could not be swapped out.
    pub(in crate::serve) fn is_left_alone(&self, ctx_id: ContextId, now: Instant) -> bool {
        self.stays.get(&ctx_id).is_some_and(|stay| now < stay.until)
    }

    /// Returns when a wait that began then is over; never if that is too far away.
    pub(in crate::serve) fn end_of_wait(&self, since: Instant) -> Option<Instant> {
        since.checked_add(Duration::from_millis(self.order?.wait_ms))
    }

    /// Returns when the device thread has something to do here without an event.
    pub(in crate::serve) fn next_due(&self) -> Option<Instant> {
        let refuses = self.waits.first().and_then(|since| self.end_of_wait(since));
        self.again.into_iter().chain(self.tell_at).chain(refuses).min()
    }
}
