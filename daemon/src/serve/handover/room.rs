//! The part of the GPUs' memory that a VM may have, as the broker says, and the contexts that go and wait for it.
//!
//! Knows no clock: time is passed in.

use crate::ipc::RoomState;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Time for which a context is left alone that could not be swapped out.
const STAYS_FOR: Duration = Duration::from_secs(1);

/// The part of the GPUs' memory that the VM may have.
#[derive(Debug, Default)]
pub(in crate::serve) struct Room {
    /// Bytes; none if the broker shares no memory out.
    pub(in crate::serve) most: Option<u64>,
    /// Contexts that do something are swapped out as well.
    pub(in crate::serve) forced: bool,
    /// The broker has said something that was not seen to.
    pub(in crate::serve) is_news: bool,
    pub(in crate::serve) is_refused: bool,
    /// The state as the broker was told last.
    pub(in crate::serve) told: Option<RoomState>,
    /// Contexts that are swapped out and want to come back, in the order in which they came.
    pub(in crate::serve) waiting: Vec<ContextId>,
    /// Contexts that are swapped out, and whose workers with a driver have not ended yet, by the numbers of these.
    pub(in crate::serve) leaving: FxHashMap<u64, ContextId>,
    /// Contexts that could not be swapped out, and until when they are left alone.
    pub(in crate::serve) stays: FxHashMap<ContextId, Instant>,
    /// The time at which contexts are looked for again that can be swapped out.
    pub(in crate::serve) again: Option<Instant>,
}

impl Room {
    /// The broker lets the VM have so much.
    pub(in crate::serve) fn limit(&mut self, most: u64, forced: bool) {
        (self.most, self.forced, self.is_news) = (Some(most), forced, true);
        // It gets an answer in any case.
        (self.told, self.again) = (None, None);
    }

    /// The first that waits is to wait no more.
    pub(in crate::serve) fn refuse(&mut self) {
        self.is_refused = true;
    }

    /// A context has been swapped out; its worker with a driver has this number, and ends.
    pub(in crate::serve) fn leaves(&mut self, ctx_id: ContextId, number: Option<u64>) {
        self.leaving.extend(number.map(|number| (number, ctx_id)));
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

    /// A context could not be swapped out.
    pub(in crate::serve) fn stays(&mut self, ctx_id: ContextId, now: Instant) {
        if self.most.is_some() {
            self.stays.insert(ctx_id, now + STAYS_FOR);
        }
    }

    /// Returns when the device thread has something to do though nothing has happened.
    pub(in crate::serve) fn next_due(&self) -> Option<Instant> {
        self.again
    }
}
