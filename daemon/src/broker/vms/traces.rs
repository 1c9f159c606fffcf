//! Traces that operators take: reads the pages of a VM's contexts, and sends their notes to the reader of the trace.

use super::super::connections::Peer;
use super::super::control::{self, Answer};
use super::super::gpu::{Gpu, Recorded};
use super::super::run::Broker;
use super::super::traces::{
    CLOSING, CONTEXTS_MAX, Holder, LOOK, MEMORY_EVERY, NOTES_PER_CONTEXT, NOTES_PER_LOOK, Trace, TraceEvent,
    UNSENT_MAX, Wanted, busy,
};
use crate::ipc::FromBroker;
use sched::{ContextKey, Nanos, TenantId};
use shm::page_clock;

/// A trace that is sent to a connection.
type Taken = Trace<Peer>;

impl Broker {
    /// Begins a trace that was admitted.
    pub(in crate::broker) fn begin_trace(&mut self, peer: Peer, wanted: Wanted, now: Nanos) {
        let (seconds, Some(vm)) = (wanted.seconds, self.vms.get(wanted.index)) else { return };
        log::info!(vm = vm.name(); "an operator takes a trace of {seconds} s");
        let begin = page_clock();
        let mut trace = Trace::new(peer, vm.tenant, wanted, begin);
        let mut lines = control::line(&Answer::Tracing { begin });
        // Each submission that a guest makes after the reader has this answer is in the trace.
        self.tell_contexts(&mut trace, true, &mut lines);
        self.gpus.iter_mut().for_each(|gpu| gpu.record(true));
        self.requests.traces.taken.push(trace);
        self.connections.stream(peer, &lines, false, &self.epoll, now);
        self.requests.traces.next_look = Some(now);
    }

    /// Sends new lines to the readers of traces, if it is time.
    pub(in crate::broker) fn trace_due(&mut self, now: Nanos) {
        if self.requests.traces.next_look.is_none_or(|at| at > now) {
            return;
        }
        for gpu in &mut self.gpus {
            gpu.record(true);
            gpu.look_at_busy(now, self.log.as_mut());
        }
        self.decide(now);
        let recorded: Vec<Recorded> = self.gpus.iter_mut().map(Gpu::take_recorded).collect();
        let mut taken = std::mem::take(&mut self.requests.traces.taken);
        taken.retain_mut(|trace| {
            self.keep_work(trace, &recorded);
            self.look_for(trace, now)
        });
        self.requests.traces.next_look = (!taken.is_empty()).then_some(now.saturating_add(LOOK));
        if taken.is_empty() {
            self.gpus.iter_mut().for_each(|gpu| gpu.record(false));
        }
        self.requests.traces.taken = taken;
    }

    /// Keeps for a trace the work of its VM's GPUs since the last look, and the last notes of contexts that have ended.
    fn keep_work(&self, trace: &mut Taken, recorded: &[Recorded]) {
        let now = page_clock();
        for (gpu, Recorded { work, dropped, ended }) in recorded.iter().enumerate() {
            if !trace.gpus.contains(&gpu) {
                continue;
            }
            trace.dropped += dropped;
            for (tenant, work) in work {
                // Submissions of the VM are reported one by one.
                let holder = match *tenant == trace.tenant {
                    true if work.count > 0 => continue,
                    true => Holder::Own,
                    false => Holder::Other(self.name_for(trace, *tenant)),
                };
                if let Some(event) = busy(gpu, holder, work, trace.begin, now) {
                    trace.keep_work(event);
                }
            }
            let own = trace.tenant;
            for (key, _, notes) in ended.iter().filter(|(_, tenant, _)| *tenant == own) {
                trace.keep(*key, notes);
            }
        }
    }

    /// Returns the name of a VM, if the reader of the trace is to know it.
    fn name_for(&self, trace: &Taken, tenant: TenantId) -> Option<String> {
        let vm = self.vms.get(tenant.0 as usize).filter(|_| trace.names)?;
        Some(vm.name().to_owned())
    }

    /// Sends the new lines of a trace. Returns whether the trace goes on.
    fn look_for(&mut self, trace: &mut Taken, now: Nanos) -> bool {
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
            trace.take(page_clock()).iter().for_each(|event| line(event, &mut lines));
        }
        let is_empty = has_room && !took && trace.notes.is_empty() && trace.work.is_empty();
        let is_over = trace.closing.is_some_and(|at| is_empty || at <= now);
        if is_over {
            self.tell_unfinished(trace, &mut lines);
            let Taken { lost, refused, dropped, .. } = *trace;
            let dropped = dropped + trace.work.len() as u64;
            let lost = lost + trace.notes.len() as u64;
            line(&TraceEvent::End { at: page_clock(), lost, refused, dropped }, &mut lines);
        }
        self.connections.stream(trace.peer, &lines, is_over, &self.epoll, now);
        !is_over
    }

    /// Has the workers of the VM begin or stop to record notes, and names new GPUs and contexts. Returns the GPUs and keys of the contexts.
    fn tell_contexts(
        &mut self,
        trace: &mut Taken,
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

    /// Takes notes out of the pages, by turns. Returns whether any were taken.
    fn take_notes(&mut self, trace: &mut Taken, places: &[(usize, ContextKey)]) -> bool {
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

    fn tell_memory(&mut self, trace: &mut Taken, now: Nanos, lines: &mut Vec<u8>) {
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

    fn tell_unfinished(&self, trace: &Taken, lines: &mut Vec<u8>) {
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

fn line(event: &TraceEvent, lines: &mut Vec<u8>) {
    let before = lines.len();
    match serde_json::to_writer(&mut *lines, event) {
        Ok(()) => lines.push(b'\n'),
        // Every event can be written as JSON, so this does not happen.
        Err(_) => lines.truncate(before),
    }
}
