//! What operators and collectors of metrics get: answers, after the device processes had a moment to say what memory they hold.

use super::connections::{Asked, Peer};
use super::control::{self, Answer, Request};
use super::process::cpu_time;
use super::run::Broker;
use super::share::class_name;
use super::status::{ContextStatus, GpuStatus, Status, Used, VmStatus};
use super::vm::Vm;
use super::{http, metrics};
use crate::ipc::{FromBroker, HeldMemory};
use crate::sched::{Nanos, Usage};
use protocol::ids::ContextId;
use rustix::event::epoll::EventFlags;
use std::time::Duration;

/// Somebody who gets an answer when all have said what memory they hold, or at the deadline.
#[derive(Debug)]
pub(super) struct Waiting {
    peer: Peer,
    wants: Wants,
    pub(super) deadline: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Status,
    Metrics,
}

/// Time that device processes have to say what memory they hold, in nanoseconds.
const REPORT_PATIENCE: Nanos = 200_000_000;

impl Broker {
    /// Something has happened on a connection.
    pub(super) fn connection(&mut self, slot: usize, flags: EventFlags, now: Nanos) {
        let Some((peer, asked)) = self.connections.event(slot, flags, &self.epoll) else { return };
        match asked {
            Asked::Http(http::Asked::Metrics) => self.answer_later(peer, Wants::Metrics, now),
            Asked::Http(http::Asked::Refused(status)) => {
                let text = format!("{status}\n");
                self.connections.answer(peer, http::answer(status, &text), true, &self.epoll, now);
            }
            // Is not passed on.
            Asked::Http(http::Asked::Incomplete) => {}
            Asked::Line(line) => match control::read(&line).and_then(|request| self.obey(request, now)) {
                Ok(true) => self.answer_later(peer, Wants::Status, now),
                Ok(false) => self.say(peer, &Answer::Done, now),
                Err(error) => self.say(peer, &Answer::Error { error }, now),
            },
        }
    }

    /// Does what an operator wants. Whether it is to know how things are.
    fn obey(&mut self, request: Request, now: Nanos) -> Result<bool, String> {
        match request {
            Request::Status => return Ok(true),
            Request::Set { vm, change } => {
                let index = self.vm_named(&vm)?;
                self.vms[index].share = change.apply(self.vms[index].share, self.settings.policy)?;
                log::info!(vm, change:?; "an operator has changed a share");
                self.set_shares(now);
            }
            Request::Kill { vm, context } => {
                let index = self.vm_named(&vm)?;
                let ctx_id = ContextId(context);
                let vm = &self.vms[index];
                let key = vm.contexts.get(&ctx_id).copied();
                let gpu = vm.gpu.and_then(|gpu| self.gpus.get_mut(gpu));
                let Some(found) = gpu.zip(key).and_then(|(gpu, key)| gpu.context(key)) else {
                    let mut known: Vec<_> = vm.contexts.keys().map(|ctx_id| ctx_id.0).collect();
                    known.sort_unstable();
                    let name = vm.name();
                    return Err(format!("{name}/{context}: no such context; {name} has {known:?}"));
                };
                found.killed = true;
                log::info!(vm = vm.name(), ctx_id = context; "an operator ends a context");
                self.tell(index, FromBroker::Kill { ctx_id });
            }
        }
        Ok(false)
    }

    fn vm_named(&self, name: &str) -> Result<usize, String> {
        self.vms.iter().position(|vm| vm.name() == name).ok_or_else(|| {
            let known: Vec<_> = self.vms.iter().map(Vm::name).collect();
            format!("{name}: no such VM; there are {}", known.join(", "))
        })
    }

    fn say(&mut self, peer: Peer, answer: &Answer, now: Nanos) {
        self.connections.answer(peer, control::line(answer), false, &self.epoll, now);
    }

    fn answer_later(&mut self, peer: Peer, wants: Wants, now: Nanos) {
        for index in 0..self.vms.len() {
            if self.vms[index].wants_to_be_asked(now) {
                self.vms[index].memory.asked = Some(now);
                self.tell(index, FromBroker::Report);
            }
        }
        self.waiting.push(Waiting { peer, wants, deadline: now.saturating_add(REPORT_PATIENCE) });
    }

    /// Answers those who waited long enough, or all if nothing is missing.
    pub(super) fn answer_due(&mut self, now: Nanos) {
        if self.waiting.is_empty() {
            return;
        }
        let complete = self.vms.iter().all(|vm| vm.memory.asked.is_none());
        let (due, rest) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| complete || waiting.deadline <= now);
        self.waiting = rest;
        let due: Vec<Waiting> = due;
        if due.is_empty() {
            return;
        }
        let status = self.status(now);
        for Waiting { peer, wants, .. } in due {
            match wants {
                Wants::Status => self.say(peer, &Answer::Status(status.clone()), now),
                Wants::Metrics => {
                    let answer = http::answer("200 OK", &metrics::text(&status));
                    self.connections.answer(peer, answer, true, &self.epoll, now);
                }
            }
        }
    }

    fn status(&mut self, now: Nanos) -> Status {
        // What those who do not ring have told since.
        for gpu in &mut self.gpus {
            gpu.look_at_leased(now, self.log.as_mut());
        }
        let vms: Vec<VmStatus> = (0..self.vms.len()).map(|index| self.vm_status(index, now)).collect();
        let gpu_status = |gpu: &super::gpu::Gpu| {
            let uuid = hexadecimal(&gpu.uuid);
            let on_it = vms.iter().filter(|vm| vm.gpu.as_ref() == Some(&uuid));
            let utilisation = on_it.map(|vm| vm.share).sum::<f64>().min(1.0);
            GpuStatus { uuid, name: gpu.name.clone(), utilisation }
        };
        let gpus = self.gpus.iter().map(gpu_status).collect();
        Status { gpus, vms, broker_cpu_seconds: seconds(cpu_time(std::process::id())) }
    }

    fn vm_status(&mut self, index: usize, now: Nanos) -> VmStatus {
        let vm = &self.vms[index];
        let gpu = vm.gpu.and_then(|gpu| self.gpus.get(gpu));
        let usage = gpu.map(|gpu| gpu.tenant_usage(vm.tenant)).unwrap_or_default();
        let uuid = gpu.map(|gpu| hexadecimal(&gpu.uuid));
        let share = vm.rate.over_last_second(now, usage.gpu);
        let device = vm.process.as_ref().and_then(|process| cpu_time(process.pid())).unwrap_or_default();
        let (contexts, workers) = self.contexts(index, now);
        let vm = &self.vms[index];
        let weights = vm.gpu.map_or(0, |gpu| self.weights_on(gpu));
        let effective = super::share::effective(vm.share, self.settings.policy, weights);
        VmStatus {
            name: vm.name().to_owned(),
            state: state(vm).to_owned(),
            pid: vm.process.as_ref().map(super::process::Process::pid),
            gpu: uuid,
            weight: vm.share.weight,
            class: class_name(vm.share.class).to_owned(),
            ceiling: effective.ceiling,
            share,
            used: used(&usage, vm.past.workers_cpu + workers, vm.memory.held),
            device_cpu_seconds: seconds(Some(vm.past.device_cpu + device)),
            restarts: vm.past.restarts,
            kills: vm.past.kills,
            contexts,
        }
    }

    /// The contexts of a VM by number, and the processor time of their workers.
    fn contexts(&mut self, index: usize, now: Nanos) -> (Vec<ContextStatus>, Duration) {
        let vm = &self.vms[index];
        let Some(gpu) = vm.gpu.and_then(|gpu| self.gpus.get_mut(gpu)) else { return Default::default() };
        let mut keys: Vec<_> = vm.contexts.iter().map(|(ctx_id, key)| (ctx_id.0, *key)).collect();
        keys.sort_unstable();
        let mut workers = Duration::ZERO;
        let contexts = keys.into_iter().filter_map(|(number, key)| {
            let usage = gpu.usage(key);
            let context = gpu.context(key)?;
            workers += context.cpu;
            Some(ContextStatus {
                context: number,
                name: context.name.clone(),
                state: context_state(&usage).to_owned(),
                share: context.rate.over_last_second(now, usage.gpu),
                used: used(&usage, context.cpu, context.memory),
            })
        });
        (contexts.collect(), workers)
    }
}

fn state(vm: &Vm) -> &'static str {
    match &vm.process {
        None => "ended",
        Some(process) if process.dying => "ended",
        Some(process) if process.connected => "connected",
        Some(process) if process.ready => "waiting",
        Some(_) => "starting",
    }
}

fn context_state(usage: &Usage) -> &'static str {
    match usage {
        Usage { leased: true, .. } => "alone",
        Usage { in_driver: 1.., .. } => "running",
        Usage { ready: 1.., .. } => "waiting",
        _ => "idle",
    }
}

fn used(usage: &Usage, cpu: Duration, memory: HeldMemory) -> Used {
    let of = |nanos: Nanos| Duration::from_nanos(nanos).as_secs_f64();
    Used {
        gpu_seconds: of(usage.gpu),
        copy_seconds: of(usage.copy),
        waiting_seconds: of(usage.waiting),
        cpu_seconds: cpu.as_secs_f64(),
        submissions: usage.submissions,
        device_memory: memory.device,
        host_memory: memory.host,
    }
}

fn seconds(time: Option<Duration>) -> f64 {
    time.unwrap_or_default().as_secs_f64()
}

fn hexadecimal(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}
