//! Traces that operators take: what the pages of one VM's contexts tell of each submission, and for whom its GPUs were busy meanwhile.
//!
//! While none is taken nothing here does anything, and workers tell nothing. While one is, the pages are looked at every [`LOOK`], for a
//! bounded number of notes, whatever a worker writes and however often it rings. The lines go to the connection that asked, as far as there
//! is room. If its reader is slow, notes stay in the pages until these are full; what a worker finds no room for it counts. So neither a
//! reader nor a worker makes the broker wait, or keep more than has a bound. The reader writes the file (`crate::trace`).

mod event;

use super::connections::Peer;
use super::control::{self, Answer};
use super::gpu::Recorded;
use super::run::Broker;
use crate::ipc::FromBroker;
pub use event::{Holder, Submission, TraceEvent};
use event::{busy, checked};
use rustc_hash::FxHashSet;
use sched::{ContextKey, Nanos, TenantId};
use shm::{TakenNotes, TraceNote, page_clock};
use std::collections::VecDeque;

/// Traces at a time, each of another VM.
const TRACES_MAX: usize = 4;
/// The seconds that a trace may take.
const SECONDS_MAX: u32 = 300;
/// Time between two looks at the pages, in nanoseconds.
pub(super) const LOOK: Nanos = 10_000_000;
/// Notes of a VM that are sent after one look: 102 400 a second.
const NOTES_PER_LOOK: usize = 1024;
/// Lines that can come of one look: notes, as many pieces of work, and names.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) const LINES_PER_LOOK: usize = 2 * NOTES_PER_LOOK + CONTEXTS_MAX;
/// Notes of one context that are taken at one look.
const NOTES_PER_CONTEXT: usize = 256;
/// Notes that are kept to be sent later, of contexts that have ended.
const NOTES_KEPT: usize = 16 * NOTES_PER_LOOK;
/// Pieces of work that are kept to be sent later.
const WORK_KEPT: usize = 4096;
/// Contexts of a trace, those that have ended included. Later ones are not in it.
const CONTEXTS_MAX: usize = 4096;
/// Bytes that wait for a slow reader. While there are more nothing is added.
const UNSENT_MAX: usize = 1 << 20;
/// Time after the end of a trace for what is still in the pages, in nanoseconds.
const CLOSING: Nanos = 500_000_000;
/// Time between two questions what memory the VM holds, in nanoseconds.
const MEMORY_EVERY: Nanos = 250_000_000;

/// A trace that somebody wants, of a VM that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The VM's index.
    pub(super) index: usize,
    /// The seconds that it is to take.
    pub(super) seconds: u32,
    /// Other VMs are to be named.
    pub(super) names: bool,
}

/// The traces that are being taken.
#[derive(Debug, Default)]
pub(super) struct Traces {
    taken: Vec<Trace>,
    next_look: Option<Nanos>,
}

/// A trace that is being taken.
#[derive(Debug)]
struct Trace {
    peer: Peer,
    index: usize,
    tenant: TenantId,
    names: bool,
    begin: Nanos,
    until: Nanos,
    /// No more is told to it: until when what is there already may come.
    closing: Option<Nanos>,
    /// The GPUs and contexts that were told of.
    gpus: FxHashSet<usize>,
    contexts: FxHashSet<ContextKey>,
    notes: VecDeque<(ContextKey, TraceNote)>,
    work: VecDeque<TraceEvent>,
    /// Looks so far, so that each context comes first in one of them.
    looks: usize,
    asked_memory: Nanos,
    told_memory: Option<Nanos>,
    lost: u64,
    refused: u64,
    dropped: u64,
}

impl Traces {
    /// Returns what is wanted, if it may be had.
    ///
    /// # Errors
    ///
    /// The reason, and what is allowed.
    pub(super) fn admit(&self, vm: &str, wanted: Wanted) -> Result<Wanted, String> {
        if !(1..=SECONDS_MAX).contains(&wanted.seconds) {
            return Err(format!("seconds: {} is not a whole number from 1 to {SECONDS_MAX}", wanted.seconds));
        }
        if self.taken.iter().any(|trace| trace.index == wanted.index) {
            return Err(format!(
                "{vm}: somebody takes a trace of this VM already; try again when it is over"
            ));
        }
        if self.taken.len() >= TRACES_MAX {
            return Err(format!("{TRACES_MAX} traces are taken already; try again when one is over"));
        }
        Ok(wanted)
    }

    /// Ends the trace whose reader has had enough.
    pub(super) fn stop(&mut self, peer: Peer, now: Nanos) {
        let read = self.taken.iter_mut().filter(|trace| trace.peer == peer);
        read.for_each(|trace| trace.until = trace.until.min(now));
    }

    /// Returns when [`Broker::trace_due`] has something to do next.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        self.next_look
    }
}

impl Broker {
    /// Begins a trace that was admitted.
    pub(super) fn begin_trace(&mut self, peer: Peer, wanted: Wanted, now: Nanos) {
        let Wanted { index, seconds, names } = wanted;
        let Some(vm) = self.vms.get(index) else { return };
        log::info!(vm = vm.name(), seconds; "an operator takes a trace");
        let begin = page_clock();
        self.traces.taken.push(Trace {
            peer,
            index,
            tenant: vm.tenant,
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
        });
        let line = control::line(&Answer::Tracing { begin });
        self.connections.stream(peer, &line, false, &self.epoll, now);
        self.traces.next_look = Some(now);
    }

    /// Looks for what there is to be told to readers of traces, if it is time to.
    pub(super) fn trace_due(&mut self, now: Nanos) {
        if self.traces.next_look.is_none_or(|at| at > now) {
            return;
        }
        for gpu in &mut self.gpus {
            gpu.record(true);
            gpu.look_at_busy(now, self.log.as_mut());
        }
        self.decide(now);
        let recorded: Vec<Recorded> = self.gpus.iter_mut().map(super::gpu::Gpu::take_recorded).collect();
        let mut taken = std::mem::take(&mut self.traces.taken);
        taken.retain_mut(|trace| {
            self.keep_work(trace, &recorded);
            self.look_for(trace, now)
        });
        self.traces.next_look = (!taken.is_empty()).then_some(now.saturating_add(LOOK));
        if taken.is_empty() {
            self.gpus.iter_mut().for_each(|gpu| gpu.record(false));
        }
        self.traces.taken = taken;
    }

    /// Keeps for a trace what its VM's GPUs did since the last look, and the last notes of contexts that have ended.
    fn keep_work(&self, trace: &mut Trace, recorded: &[Recorded]) {
        let now = page_clock();
        for (gpu, Recorded { work, dropped, ended }) in recorded.iter().enumerate() {
            if !trace.gpus.contains(&gpu) {
                continue;
            }
            trace.dropped += dropped;
            for (tenant, work) in work {
                // Submissions of the VM are told one by one.
                let holder = match *tenant == trace.tenant {
                    true if work.count > 0 => continue,
                    true => Holder::Own,
                    false => Holder::Other(self.name_for(trace, *tenant)),
                };
                match busy(gpu, holder, work, trace.begin, now) {
                    Some(event) if trace.work.len() < WORK_KEPT => trace.work.push_back(event),
                    Some(_) => trace.dropped += 1,
                    None => {}
                }
            }
            let own = trace.tenant;
            for (key, _, notes) in ended.iter().filter(|(_, tenant, _)| *tenant == own) {
                trace.keep(*key, notes);
            }
        }
    }

    /// Returns the name of a VM, if the reader of the trace is to know it.
    fn name_for(&self, trace: &Trace, tenant: TenantId) -> Option<String> {
        let vm = self.vms.get(tenant.0 as usize).filter(|_| trace.names)?;
        Some(vm.name().to_owned())
    }

    /// Sends what there is. Returns whether the trace goes on.
    fn look_for(&mut self, trace: &mut Trace, now: Nanos) -> bool {
        let Some(unsent) = self.connections.unsent(trace.peer) else {
            self.tell_contexts(trace, false, &mut Vec::new());
            return false;
        };
        if trace.until <= now || self.vms.get(trace.index).is_none() {
            trace.closing.get_or_insert(now.saturating_add(CLOSING));
        }
        let mut lines = Vec::new();
        let places = self.tell_contexts(trace, trace.closing.is_none(), &mut lines);
        let has_room = unsent <= UNSENT_MAX;
        let took = has_room && self.take_notes(trace, &places);
        if has_room {
            self.tell_memory(trace, now, &mut lines);
            trace.drain(&mut lines);
        }
        let is_empty = has_room && !took && trace.notes.is_empty() && trace.work.is_empty();
        let is_over = trace.closing.is_some_and(|at| is_empty || at <= now);
        if is_over {
            self.tell_unfinished(trace, &mut lines);
            let Trace { lost, refused, dropped, .. } = *trace;
            let dropped = dropped + trace.work.len() as u64;
            let lost = lost + trace.notes.len() as u64;
            line(&TraceEvent::End { at: page_clock(), lost, refused, dropped }, &mut lines);
        }
        self.connections.stream(trace.peer, &lines, is_over, &self.epoll, now);
        !is_over
    }

    /// Has the workers of the VM tell what they do, or no more, and names GPUs and contexts that are new. Returns where the contexts are.
    fn tell_contexts(
        &mut self,
        trace: &mut Trace,
        wanted: bool,
        lines: &mut Vec<u8>,
    ) -> Vec<(usize, ContextKey)> {
        let Some(vm) = self.vms.get(trace.index) else { return Vec::new() };
        for on in &vm.gpus {
            if trace.gpus.insert(on.gpu) {
                line(&TraceEvent::Gpu { gpu: on.gpu, name: self.gpus[on.gpu].name.clone() }, lines);
            }
        }
        let mut places = Vec::new();
        for (ctx_id, context) in &vm.contexts {
            for (gpu, key) in context.places(&vm.gpus) {
                if trace.contexts.len() >= CONTEXTS_MAX && !trace.contexts.contains(&key) {
                    continue;
                }
                places.push((gpu, key));
                self.gpus[gpu].trace(key, wanted);
                if wanted && trace.contexts.insert(key) {
                    let name = context.name.clone();
                    line(&TraceEvent::Context { key: key.0, context: ctx_id.0, gpu, name }, lines);
                }
            }
        }
        places.sort_unstable();
        places
    }

    /// Takes notes out of the pages, by turns. Returns whether there were any.
    fn take_notes(&mut self, trace: &mut Trace, places: &[(usize, ContextKey)]) -> bool {
        let first = trace.looks % places.len().max(1);
        trace.looks = trace.looks.wrapping_add(1);
        let mut took = false;
        for (gpu, key) in places[first..].iter().chain(&places[..first]) {
            let room = NOTES_PER_LOOK.saturating_sub(trace.notes.len()).min(NOTES_PER_CONTEXT);
            let notes = self.gpus[*gpu].take_notes(*key, u32::try_from(room).unwrap_or(0));
            took |= !notes.notes.is_empty() || notes.nonsense > 0;
            trace.keep(*key, &notes);
        }
        took
    }

    fn tell_memory(&mut self, trace: &mut Trace, now: Nanos, lines: &mut Vec<u8>) {
        let Some(vm) = self.vms.get_mut(trace.index) else { return };
        let answered = vm.memory.answered.filter(|at| *at >= trace.begin);
        if let Some(at) = answered.filter(|_| answered != trace.told_memory) {
            let held = vm.memory.held;
            line(&TraceEvent::Memory { at, device: held.device, host: held.host }, lines);
            trace.told_memory = answered;
        }
        if now.saturating_sub(trace.asked_memory) >= MEMORY_EVERY && vm.wants_to_be_asked(now) {
            vm.memory.asked = Some(now);
            trace.asked_memory = now;
            self.tell(trace.index, FromBroker::Report);
        }
    }

    fn tell_unfinished(&self, trace: &Trace, lines: &mut Vec<u8>) {
        for gpu in &trace.gpus {
            for (tenant, _, since) in self.gpus[*gpu].running() {
                let holder = match tenant == trace.tenant {
                    true => Holder::Own,
                    false => Holder::Other(self.name_for(trace, tenant)),
                };
                let since = since.max(trace.begin);
                line(&TraceEvent::Unfinished { gpu: *gpu, holder, since }, lines);
            }
        }
    }
}

impl Trace {
    /// Keeps what a context told, as far as there is room.
    fn keep(&mut self, key: ContextKey, TakenNotes { notes, lost, nonsense }: &TakenNotes) {
        let room = NOTES_KEPT.saturating_sub(self.notes.len());
        self.lost += u64::from(*lost) + notes.len().saturating_sub(room) as u64;
        self.refused += u64::from(*nonsense);
        self.notes.extend(notes.iter().take(room).map(|note| (key, *note)));
    }

    /// Writes what was kept, as much as may be sent after one look.
    fn drain(&mut self, lines: &mut Vec<u8>) {
        // What was written into a page was written before now.
        let now = page_clock();
        let count = self.notes.len().min(NOTES_PER_LOOK);
        for (key, note) in self.notes.drain(..count) {
            match checked(key.0, note, self.begin, now) {
                Some(event) => line(&event, lines),
                None => self.refused += 1,
            }
        }
        let count = self.work.len().min(NOTES_PER_LOOK);
        self.work.drain(..count).for_each(|event| line(&event, lines));
    }
}

fn line(event: &TraceEvent, lines: &mut Vec<u8>) {
    let before = lines.len();
    match serde_json::to_writer(&mut *lines, event) {
        Ok(()) => lines.push(b'\n'),
        // Nothing of it can fail to be written.
        Err(_) => lines.truncate(before),
    }
}
