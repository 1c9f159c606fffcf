//! One submission: the stage that it has reached, and the marker that tells its end.
//!
//! The stages, and the thread that brings a submission there:
//!
//! | stage | thread |
//! | --- | --- |
//! | begun | the thread that decodes the command: the gate lets the submission pass |
//! | held | the same: the gate does not let it pass, and it waits in the held queue |
//! | granted | the thread that calls the driver with it: the same, or the gate's for a held submission |
//! | in the driver | the same, when the driver has taken it |
//! | ended | any thread that finds its marker or a later marker signalled; or the thread that withdraws it |
//! | settled | the same: the journal and the gate know of its end, and its marker is free |
//!
//! If threads wait for a submission when it ends, the last of these threads frees its marker. Stages change while the queue's submissions are
//! locked ([`super::submissions::Submissions`]).

use super::waits::{Driver, Waits};
use crate::kinds::fence::Fence;
use crate::kinds::semaphore::{COMPLETE, Progress, TAKEN};
use crate::logical::submitted::Number;
use std::sync::Arc;

/// One call to the driver with batches that, as far as the guest is told, begin together and end together.
#[derive(Debug)]
pub(crate) struct Submission {
    number: Number,
    stage: Stage,
    marker: Marker,
    /// The guest's fence, if that is the marker: it is not reset or destroyed before the submission is known to be complete.
    lent: Option<Arc<Fence>>,
    waits: Waits,
    /// The progress by which binary semaphores that it signals know of it.
    progress: Option<Progress>,
    /// The record of when and how it was dispatched, if there is a gate.
    dispatched: Option<Dispatched>,
    /// The time at which it was submitted, in nanoseconds of the monotonic clock, if a trace is taken of it.
    traced: Option<u64>,
    /// The number of threads that wait for its end.
    waiters: u32,
}

/// The facts of a submission that is about to begin.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    /// True if it waits at the gate.
    pub is_held: bool,
    /// The marker that the driver gets with it: a fence of ours, or the guest's.
    pub marker: Option<u64>,
    /// The guest's fence, if that is the marker.
    pub lent: Option<Arc<Fence>>,
    /// The semaphores and submissions that it waits for before it runs.
    pub waits: Waits,
    /// The progress by which binary semaphores that it signals know of it, if it signals any.
    pub progress: Option<Progress>,
    /// The time of the clock of traces, if a trace is taken of it.
    pub traced: Option<u64>,
}

/// The stages before a submission has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begun,
    Held,
    Granted,
    InDriver,
}

/// The fence that tells the end of a submission, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    /// No marker of its own: the submission ends when a later one does.
    None,
    /// A fence that a thread is about to put behind the submission: no other thread may name the fence yet.
    Coming,
    /// This fence, which is signalled with the submission's last batch or behind it.
    Fence(u64),
}

/// The time and the way in which a submission was dispatched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispatched {
    /// The time, in nanoseconds of the monotonic clock.
    pub at: u64,
    /// The time at which it was found ready; a time outside of the span from its beginning to [`Self::at`] stands for the nearer end.
    pub ready: u64,
    /// The number of its pair of time stamps, if it has one.
    pub stamp: Option<u32>,
    /// True if the gate has counted it.
    pub counts: bool,
}

/// A submission that is over, to be settled.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The submission's number.
    pub number: Number,
    /// The marker, if it is ours and no thread waits for it.
    pub free: Option<u64>,
    /// The record of when and how it was dispatched, if there is a gate.
    pub dispatched: Option<Dispatched>,
    /// The time at which it was submitted, if a trace is taken of it.
    pub traced: Option<u64>,
}

/// A submission that a thread waits for. Its marker stays until the thread returns this value.
#[derive(Debug)]
pub(crate) struct Awaited {
    /// The submission's number.
    pub number: Number,
    lent: Option<Arc<Fence>>,
    /// True if the gate's watcher waits for it.
    pub for_watcher: bool,
}

/// The marker of a submission that was settled while threads waited for it.
#[derive(Debug)]
pub(super) struct Left {
    number: Number,
    marker: Option<u64>,
    waiters: u32,
}

impl Submission {
    /// Creates a submission that begins.
    pub(super) fn new(number: Number, beginning: Beginning) -> Self {
        let Beginning { is_held, marker, lent, waits, progress, traced } = beginning;
        let marker = marker.map_or(Marker::None, Marker::Fence);
        let stage = if is_held { Stage::Held } else { Stage::Begun };
        let (dispatched, waiters) = (None, 0);
        Self { number, stage, marker, lent, waits, progress, dispatched, traced, waiters }
    }

    /// Returns its number in its queue.
    pub(super) fn number(&self) -> Number {
        self.number
    }

    /// Notes that the driver is about to be called with it. Returns the marker that it takes along.
    pub(super) fn grant(&mut self, dispatched: Option<Dispatched>) -> Option<u64> {
        debug_assert!(matches!(self.stage, Stage::Begun | Stage::Held), "{:?}", self.stage);
        (self.stage, self.dispatched) = (Stage::Granted, dispatched);
        self.marker()
    }

    /// Notes that the driver has taken it, and will signal its marker.
    pub(super) fn enter_driver(&mut self) {
        debug_assert_eq!(self.stage, Stage::Granted);
        self.stage = Stage::InDriver;
        self.progress.iter().for_each(|progress| progress.reach(TAKEN));
    }

    /// Ends it. Returns the facts that are to be settled, and its marker if threads wait for it.
    pub(super) fn end(self) -> (Ended, Option<Left>) {
        self.progress.iter().for_each(|progress| progress.reach(COMPLETE));
        let (number, dispatched, traced, waiters) = (self.number, self.dispatched, self.traced, self.waiters);
        let marker = self.marker().filter(|_| self.lent.is_none());
        let left = (waiters > 0).then_some(Left { number, marker, waiters });
        let free = marker.filter(|_| left.is_none());
        (Ended { number, free, dispatched, traced }, left)
    }

    /// Returns whether the driver has it.
    pub(super) fn is_in_driver(&self) -> bool {
        self.stage == Stage::InDriver
    }

    /// Returns whether it waits at the gate.
    pub(super) fn is_held(&self) -> bool {
        self.stage == Stage::Held
    }

    /// Returns the record of when and how it was dispatched, if there is a gate.
    pub(super) fn dispatched(&self) -> Option<Dispatched> {
        self.dispatched
    }

    /// Returns its marker, if it has one that the driver has or will get with it.
    pub(super) fn marker(&self) -> Option<u64> {
        match self.marker {
            Marker::Fence(marker) => Some(marker),
            Marker::None | Marker::Coming => None,
        }
    }

    /// Returns whether it has a marker, or will have one in a moment.
    pub(super) fn has_marker(&self) -> bool {
        self.marker != Marker::None
    }

    /// Returns whether it has no marker: the caller then has to mark it and to call [`Self::mark`]. It does not end meanwhile.
    pub(super) fn begin_marking(&mut self) -> bool {
        let begins = self.marker == Marker::None;
        if begins {
            self.marker = Marker::Coming;
        }
        begins
    }

    /// Notes that the driver has a marker behind it, or could not take any.
    pub(super) fn mark(&mut self, marker: Option<u64>) {
        debug_assert_eq!(self.marker, Marker::Coming);
        self.marker = marker.map_or(Marker::None, Marker::Fence);
    }

    /// Counts the caller, which may be the gate's watcher, among the threads that wait for its end.
    pub(super) fn await_end(&mut self, for_watcher: bool) -> Awaited {
        self.waiters += 1;
        self.lent.iter().for_each(|fence| fence.watch());
        Awaited { number: self.number, lent: self.lent.clone(), for_watcher }
    }

    /// Stops counting a thread that has waited for it.
    pub(super) fn let_go(&mut self) {
        self.waiters -= 1;
    }

    /// Returns whether it cannot have begun to run: it waits at the gate, or for a semaphore that is not signalled yet.
    pub(super) fn is_blocked(&self, driver: &impl Driver) -> bool {
        self.is_held() || self.waits.are_missing(driver)
    }

    /// Returns whether all its waits are over.
    pub(super) fn can_run(&self, driver: &impl Driver) -> bool {
        self.waits.are_over(driver)
    }
}

impl Awaited {
    /// Releases the guest's fence, if that was the marker.
    pub(super) fn release(self) {
        self.lent.iter().for_each(|fence| fence.watched());
    }
}

impl Left {
    /// Returns whether it belongs to this submission.
    pub(super) fn is_of(&self, number: Number) -> bool {
        self.number == number
    }

    /// Returns the marker, unless that is the guest's fence.
    pub(super) fn marker(&self) -> Option<u64> {
        self.marker
    }

    /// Stops counting a thread that has waited. Returns whether the thread was the last.
    pub(super) fn let_go(&mut self) -> bool {
        self.waiters -= 1;
        self.waiters == 0
    }
}
