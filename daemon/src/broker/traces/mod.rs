//! Traces that operators take: the notes about each submission in the pages of one VM's contexts, and the VMs for which its GPUs were busy.
//!
//! While no trace is taken, this module is idle, and workers write no notes. During a trace, the broker reads a bounded number of notes from the
//! pages every [`LOOK`], however much a worker writes and however often it rings. The lines go to the connection that asked, as far as it has room.
//! If its reader is slow, notes stay in the pages until these are full; a worker counts the notes that it finds no room for. So neither a reader nor
//! a worker makes the broker wait, and what the broker keeps is bounded. The reader writes the file (`crate::trace`).
//!
//! This module keeps the state of traces and judges the notes; `vms::traces` takes them. It knows no connections: a reader has any name that the
//! caller gives it.

mod event;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzzing;

pub(super) use event::busy;
use event::checked;
pub use event::{Holder, Submission, TraceEvent};
use rustc_hash::FxHashSet;
use sched::{ContextKey, Nanos, TenantId};
use shm::{TakenNotes, TraceNote};
use std::collections::VecDeque;

/// Traces at a time, each of another VM.
const TRACES_MAX: usize = 4;
/// The seconds that a trace may take.
const SECONDS_MAX: u32 = 300;
/// Time between two looks at the pages, in nanoseconds.
pub(super) const LOOK: Nanos = 10_000_000;
/// Notes of a VM that are sent after one look: 102 400 a second.
pub(super) const NOTES_PER_LOOK: usize = 1024;
/// The most lines from one look: notes, as many pieces of work, and names.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) const LINES_PER_LOOK: usize = 2 * NOTES_PER_LOOK + CONTEXTS_MAX;
/// Notes of one context that are taken at one look.
pub(super) const NOTES_PER_CONTEXT: usize = 256;
/// The notes of ended contexts that are kept to be sent later.
const NOTES_KEPT: usize = 16 * NOTES_PER_LOOK;
/// Pieces of work that are kept to be sent later.
const WORK_KEPT: usize = 4096;
/// The contexts of a trace, including those that have ended. Later contexts are left out.
pub(super) const CONTEXTS_MAX: usize = 4096;
/// Bytes that wait for a slow reader. While more bytes wait, the broker adds none.
pub(super) const UNSENT_MAX: usize = 1 << 20;
/// Time after the end of a trace for notes that are still in the pages, in nanoseconds.
pub(super) const CLOSING: Nanos = 500_000_000;
/// Time between two questions about the memory of the VM, in nanoseconds.
pub(super) const MEMORY_EVERY: Nanos = 250_000_000;

/// A trace that an operator wants, of an existing VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The VM's index.
    pub(super) index: usize,
    /// The seconds that the trace takes.
    pub(super) seconds: u32,
    /// Other VMs are to be named.
    pub(super) names: bool,
}

/// The traces that are being taken.
#[derive(Debug)]
pub(super) struct Traces<P> {
    pub(super) taken: Vec<Trace<P>>,
    /// The time at which the pages are looked at next; none while no trace is taken.
    pub(super) next_look: Option<Nanos>,
}

/// A trace that is being taken.
#[derive(Debug)]
pub(super) struct Trace<P> {
    pub(super) peer: P,
    pub(super) index: usize,
    pub(super) tenant: TenantId,
    pub(super) names: bool,
    pub(super) begin: Nanos,
    pub(super) until: Nanos,
    /// The time until which notes may come that are already in the pages; set when the trace has ended.
    pub(super) closing: Option<Nanos>,
    /// The GPUs and contexts that the reader got a line for.
    pub(super) gpus: FxHashSet<usize>,
    pub(super) contexts: FxHashSet<ContextKey>,
    pub(super) notes: VecDeque<(ContextKey, TraceNote)>,
    pub(super) work: VecDeque<TraceEvent>,
    /// The number of looks so far, so that each context comes first in one of the looks.
    pub(super) looks: usize,
    pub(super) asked_memory: Nanos,
    pub(super) told_memory: Option<Nanos>,
    pub(super) lost: u64,
    pub(super) refused: u64,
    pub(super) dropped: u64,
}

impl<P> Default for Traces<P> {
    fn default() -> Self {
        Self { taken: Vec::new(), next_look: None }
    }
}

impl<P: PartialEq> Traces<P> {
    /// Returns the wanted trace, if it is allowed.
    ///
    /// # Errors
    ///
    /// The reason, and the allowed values.
    pub(super) fn admit(&self, vm: &str, wanted: Wanted) -> Result<Wanted, String> {
        if !(1..=SECONDS_MAX).contains(&wanted.seconds) {
            return Err(format!("seconds: {} is not a whole number from 1 to {SECONDS_MAX}", wanted.seconds));
        }
        if self.is_taken_of(wanted.index) {
            return Err(format!(
                "{vm}: another operator takes a trace of this VM already; try again when it is over"
            ));
        }
        if self.taken.len() >= TRACES_MAX {
            return Err(format!("{TRACES_MAX} traces are taken already; try again when one is over"));
        }
        Ok(wanted)
    }

    /// Returns whether a trace of the VM with this index is being taken.
    pub(super) fn is_taken_of(&self, index: usize) -> bool {
        self.taken.iter().any(|trace| trace.index == index)
    }

    /// Ends the trace whose reader has had enough.
    pub(super) fn stop(&mut self, peer: P, now: Nanos) {
        let read = self.taken.iter_mut().filter(|trace| trace.peer == peer);
        read.for_each(|trace| trace.until = trace.until.min(now));
        // The broker looks at the trace at once, so that the next trace of the VM is not refused.
        self.next_look = self.next_look.map(|at| at.min(now));
    }

    /// Returns when the pages are to be looked at next.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        self.next_look
    }
}

impl<P> Trace<P> {
    /// Returns a trace that begins.
    pub(super) fn new(peer: P, tenant: TenantId, wanted: Wanted, begin: Nanos) -> Self {
        let Wanted { index, seconds, names } = wanted;
        Self {
            peer,
            index,
            tenant,
            names,
            begin,
            until: begin.saturating_add(u64::from(seconds) * 1_000_000_000),
            closing: None,
            gpus: FxHashSet::default(),
            contexts: FxHashSet::default(),
            notes: VecDeque::new(),
            work: VecDeque::new(),
            looks: 0,
            asked_memory: 0,
            told_memory: None,
            lost: 0,
            refused: 0,
            dropped: 0,
        }
    }

    /// Keeps the notes of a context, as far as there is room.
    pub(super) fn keep(&mut self, key: ContextKey, TakenNotes { notes, lost, nonsense }: &TakenNotes) {
        let room = NOTES_KEPT.saturating_sub(self.notes.len());
        self.lost += u64::from(*lost) + notes.len().saturating_sub(room) as u64;
        self.refused += u64::from(*nonsense);
        self.notes.extend(notes.iter().take(room).map(|note| (key, *note)));
    }

    /// Keeps an event of a busy GPU, as far as there is room.
    pub(super) fn keep_work(&mut self, event: TraceEvent) {
        match self.work.len() < WORK_KEPT {
            true => self.work.push_back(event),
            false => self.dropped += 1,
        }
    }

    /// Takes out as many kept notes as may be sent after one look. `now` is a time after all that was written into a page so far.
    pub(super) fn take(&mut self, now: Nanos) -> Vec<TraceEvent> {
        let count = self.notes.len().min(NOTES_PER_LOOK);
        let checked = self.notes.drain(..count).map(|(key, note)| checked(key.0, note, self.begin, now));
        let mut events: Vec<_> = checked.flatten().collect();
        self.refused += (count - events.len()) as u64;
        let count = self.work.len().min(NOTES_PER_LOOK);
        events.extend(self.work.drain(..count));
        events
    }
}
