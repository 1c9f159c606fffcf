//! Answers operators and collectors of metrics, after the device processes have had a moment to report their memory.

use super::connections::{Asked, Peer, Waiting, Wants};
use super::control::{self, Answer, Request};
use super::http;
use super::process::{Process, own_cpu_time, thread_cpu_time};
use super::reload::plan::Pending;
use super::reload::{Asker, How};
use super::report::metrics;
use super::report::status::{
    ContextStatus, FORM, GpuStatus, PendingStatus, Status, Used, VmGpuStatus, VmStatus,
};
use super::run::Broker;
use super::settings::share::{class_name, effective};
use super::traces::{Traces, Wanted};
use super::upgrade::Upgrading;
use super::vm::{Draining, OnGpu, Restart, Restarting, Vm};
use crate::ipc::{FromBroker, GpuChange, HeldMemory, Replaced, Unmovable};
use config::{Amount, Passage, hexadecimal};
use protocol::ids::ContextId;
use readiness::Events;
use sched::{Nanos, Usage};
use std::time::Duration;

/// Time that device processes have to report their memory, in nanoseconds.
const REPORT_PATIENCE: Nanos = 200_000_000;
/// The answer to an operator who wants to change a share in a daemon that shares nothing out.
const NOT_SHARED: &str = "this daemon serves one VM and shares no GPU out: weight, class and ceiling are for the VMs of one broker; to use them, name the VMs in a file and start vhost-user-vulkan --config FILE";

/// The text about a VM whose device process runs an earlier program than the broker, and gets no successor.
const OLDER: &str = "the daemon was upgraded: the VM keeps the old program until it is off";
/// The text about a VM whose device process gets a successor.
const RENEWED: &str = "the daemon was upgraded: the VM changes to the new program in a moment, while its programs go on; a try that fails is repeated after 30 s to 1 h, or at the next `upgrade`";

/// The answer to a request in the moment before the new program takes over.
const UPGRADED: &str = "the broker is being upgraded: ask again in a moment";

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The request is carried out.
    Done,
    /// The status, when device processes have reported their memory.
    Status,
    /// The result of reading the file again, in this way.
    Reload(How),
    /// The upgrade to the newly installed program, stage by stage.
    Upgrade,
    /// A trace, line by line.
    Trace(Wanted),
    /// The draining of the GPU with this index, context by context.
    Drain(usize),
    /// What a drain of the GPU with this index would do, when device processes have reported which contexts can be moved.
    DrainPlan(usize),
    /// The restart of a context of the VM with this index, stage by stage, on another GPU if that is wanted; or its swapping out.
    Restart(usize, ContextId, Restart, Option<GpuChange>),
}

/// The requests of operators that take a while, with the connections that wait for them.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The reports that wait for device processes.
    pub(super) waiting: Vec<Waiting>,
    pub(super) traces: Traces<Peer>,
    /// The restarts of contexts that the broker has asked device processes for.
    pub(super) restarts: Vec<Restarting>,
    /// The GPU that is being drained, if there is one.
    pub(super) draining: Option<Draining>,
    /// The upgrade to the program that is to follow this one.
    pub(super) upgrading: Option<Upgrading<Peer>>,
}

impl Broker {
    /// Handles an event of a connection.
    pub(super) fn connection(&mut self, slot: usize, flags: Events, now: Nanos) {
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
                Ok(Reply::Done) => self.say(peer, &Answer::Done, now),
                Ok(Reply::Status) => self.answer_later(peer, Wants::Status, now),
                Ok(Reply::Reload(_)) if self.comes_to_rest() => self.put_off(peer, Wants::Status, now),
                Ok(Reply::Reload(how)) => self.read_again(Asker { peer: Some(peer), how }, now),
                Ok(Reply::Upgrade) => self.begin_upgrade(peer, now),
                Ok(Reply::Trace(wanted)) => self.begin_trace(peer, wanted, now),
                Ok(Reply::Drain(gpu)) => self.begin_drain(peer, gpu, now),
                Ok(Reply::DrainPlan(gpu)) => self.answer_later(peer, Wants::DrainPlan(gpu), now),
                Ok(Reply::Restart(index, ctx_id, what, change)) => {
                    self.begin_restart(peer, (index, ctx_id), what, change, now)
                }
                Err(error) => self.say(peer, &Answer::Error { error }, now),
            },
            Asked::Enough => self.requests.traces.stop(peer, now),
        }
    }

    /// Carries out an operator's request, if it can be carried out at once. Returns the kind of answer that the operator gets.
    pub(super) fn obey(&mut self, request: Request, now: Nanos) -> Result<Reply, String> {
        match request {
            Request::Status => return Ok(Reply::Status),
            Request::Upgrade => return Ok(Reply::Upgrade),
            Request::Reload { now, dry_run } => return Ok(Reply::Reload(How { now, dry_run })),
            Request::Trace { vm, seconds, names } => {
                let index = self.vm_named(&vm)?;
                return self.requests.traces.admit(&vm, Wanted { index, seconds, names }).map(Reply::Trace);
            }
            Request::Restart { vm, context } => {
                let (index, ctx_id) = (self.vm_named(&vm)?, ContextId(context));
                self.admit_restart(index, ctx_id)?;
                self.log_order(index, ctx_id, "restarts", None);
                return Ok(Reply::Restart(index, ctx_id, Restart::Again, None));
            }
            Request::SwapOut { vm, context } => {
                let (index, ctx_id) = (self.vm_named(&vm)?, ContextId(context));
                self.admit_restart(index, ctx_id)?;
                self.log_order(index, ctx_id, "swaps out", None);
                return Ok(Reply::Restart(index, ctx_id, Restart::SwapOut, None));
            }
            Request::Move { vm, context, gpu, from } => {
                let (index, ctx_id) = (self.vm_named(&vm)?, ContextId(context));
                self.admit_restart(index, ctx_id)?;
                let change = self.gpu_change(index, ctx_id, &gpu, from.as_deref())?;
                self.log_order(index, ctx_id, "moves", Some(&gpu));
                return Ok(Reply::Restart(index, ctx_id, Restart::Move, Some(change)));
            }
            Request::Drain { gpu, dry_run: true } => return self.gpu_named(&gpu).map(Reply::DrainPlan),
            Request::Drain { gpu, dry_run: false } => {
                let gpu = self.gpu_named(&gpu)?;
                self.admit_drain()?;
                log::info!(gpu = self.gpus[gpu].label(); "an operator drains a GPU");
                return Ok(Reply::Drain(gpu));
            }
            Request::Undrain { gpu } => {
                let gpu = self.gpu_named(&gpu)?;
                log::info!(gpu = self.gpus[gpu].label(); "an operator lets contexts begin on a GPU again");
                self.undrain(gpu, now);
            }
            Request::Set { vm, change } => {
                let index = self.vm_named(&vm)?;
                if self.passage() == Passage::Counted {
                    return Err(NOT_SHARED.into());
                }
                self.vms[index].share = change.apply(self.vms[index].share, self.settings.policy)?;
                self.groups.set_weight(&self.vms[index]);
                self.vms[index].log_share("an operator has changed the VM's share:");
                self.set_shares(now);
            }
            Request::Kill { vm, context } => {
                let index = self.vm_named(&vm)?;
                let ctx_id = ContextId(context);
                let vm = &mut self.vms[index];
                let Some(found) = vm.contexts.get_mut(&ctx_id) else {
                    return Err(vm.no_such_context(ctx_id));
                };
                found.killed.get_or_insert(now);
                self.log_order(index, ctx_id, "ends", None);
                self.tell(index, FromBroker::Kill { ctx_id });
            }
        }
        Ok(Reply::Done)
    }

    /// Logs an operator's order about a context, and the GPU to which the order moves the context.
    fn log_order(&self, index: usize, ctx_id: ContextId, does: &str, gpu: Option<&str>) {
        let vm = &self.vms[index];
        let program = vm.contexts.get(&ctx_id).map(|context| context.name.as_str());
        log::info!(vm = vm.name(), context = ctx_id.0, program, gpu; "an operator {does} context {ctx_id}");
    }

    fn vm_named(&self, name: &str) -> Result<usize, String> {
        let found = self.vms.named(name).filter(|index| !self.vms[*index].is_leaving);
        found.ok_or_else(|| {
            let there = self.vms.by_name().into_iter().map(|index| &self.vms[index]);
            let known: Vec<_> = there.filter(|vm| !vm.is_leaving).map(Vm::name).collect();
            format!("{name}: no such VM; there are {}", known.join(", "))
        })
    }

    pub(super) fn say(&mut self, peer: Peer, answer: &Answer, now: Nanos) {
        self.connections.answer(peer, control::line(answer), false, &self.epoll, now);
    }

    fn answer_later(&mut self, peer: Peer, wants: Wants, now: Nanos) {
        if self.comes_to_rest() {
            return self.put_off(peer, wants, now);
        }
        for index in self.vms.indices() {
            if self.vms[index].wants_to_be_asked(now) {
                self.vms[index].memory.asked = Some(now);
                self.tell(index, FromBroker::Report);
            }
        }
        self.requests.waiting.push(Waiting { peer, wants, deadline: now.saturating_add(REPORT_PATIENCE) });
    }

    /// Tells a peer to ask again: otherwise one peer after the other could delay an upgrade, which needs a moment without waiting peers, and a peer
    /// that waits at that moment loses its connection.
    fn put_off(&mut self, peer: Peer, wants: Wants, now: Nanos) {
        match wants {
            Wants::Status | Wants::DrainPlan(_) => {
                self.say(peer, &Answer::Error { error: UPGRADED.into() }, now);
            }
            Wants::Metrics => {
                let answer = http::answer("503 Service Unavailable", &format!("{UPGRADED}\n"));
                self.connections.answer(peer, answer, true, &self.epoll, now);
            }
        }
    }

    /// Answers the operators that have waited long enough, or all if nothing is missing.
    pub(super) fn answer_due(&mut self, now: Nanos) {
        if self.requests.waiting.is_empty() {
            return;
        }
        let complete = self.vms.iter().all(|vm| vm.memory.asked.is_none());
        let (due, rest) = std::mem::take(&mut self.requests.waiting)
            .into_iter()
            .partition(|waiting| complete || waiting.deadline <= now);
        self.requests.waiting = rest;
        let due: Vec<Waiting> = due;
        if due.is_empty() {
            return;
        }
        let status = self.status(now);
        for Waiting { peer, wants, .. } in due {
            match wants {
                Wants::Status => self.say(peer, &Answer::Status(status.clone()), now),
                Wants::DrainPlan(gpu) => {
                    let contexts = self.drain_plan(gpu);
                    self.say(peer, &Answer::DrainPlan { contexts }, now);
                }
                Wants::Metrics => {
                    let answer = http::answer("200 OK", &metrics::text(&status));
                    self.connections.answer(peer, answer, true, &self.epoll, now);
                }
            }
        }
    }

    pub(super) fn status(&mut self, now: Nanos) -> Status {
        // Reads what the workers that do not ring have reported since the last look.
        for gpu in &mut self.gpus {
            gpu.look_at_busy(now, self.log.as_mut());
        }
        let vms: Vec<VmStatus> =
            self.vms.by_name().into_iter().map(|index| self.vm_status(index, now)).collect();
        let gpus = (0..self.gpus.len()).map(|index| self.gpu_status(index, &vms)).collect();
        let policy = self.settings.policy.name().to_owned();
        let cpu = match self.passage() {
            Passage::ByGrant => own_cpu_time(),
            Passage::Counted => thread_cpu_time(),
        };
        let (form, version) = (FORM, env!("CARGO_PKG_VERSION").to_owned());
        let upgrade = self.replaced_program().map(Replaced::to_string);
        Status { form, version, upgrade, gpus, vms, policy, broker_cpu_seconds: cpu.as_secs_f64() }
    }

    fn gpu_status(&self, index: usize, vms: &[VmStatus]) -> GpuStatus {
        let gpu = &self.gpus[index];
        let uuid = hexadecimal(&gpu.uuid);
        let on_it = vms.iter().flat_map(|vm| &vm.gpus).filter(|on| on.uuid == uuid);
        let mut status = GpuStatus {
            utilisation: on_it.map(|on| on.share).sum::<f64>().min(1.0),
            uuid,
            name: gpu.name.clone(),
            driver: gpu.driver.clone(),
            device_memory: gpu.memory,
            weights: self.weights_on(index),
            drained: gpu.is_drained,
            ..GpuStatus::default()
        };
        for vm in self.may_be_on(index) {
            status.vms.count(state(vm));
            let bound = promised(vm, gpu.memory);
            status.device_memory_promised = status.device_memory_promised.saturating_add(bound);
        }
        status.device_memory_free = gpu.memory.saturating_sub(status.device_memory_promised);
        status
    }

    fn vm_status(&mut self, index: usize, now: Nanos) -> VmStatus {
        let (contexts, workers) = self.contexts(index, now);
        let vm = &self.vms[index];
        let usages = vm.gpus.iter().map(|on| self.gpus[on.gpu].tenant_usage(vm.tenant));
        let usage = sum(usages.chain([vm.past.usage]));
        let bound = |of: fn(HeldMemory) -> u64| vm.memory.limits.map(of).filter(|bytes| *bytes != u64::MAX);
        let gpus = vm.gpus.iter().filter(|on| self.shows(vm, on.gpu));
        let gpus: Vec<_> = gpus.map(|on| self.vm_gpu_status(vm, on, now)).collect();
        let least = |ceilings: f64, ceiling: f64| ceilings.min(ceiling);
        let device = vm.process.as_ref().map(Process::cpu_time).unwrap_or_default();
        let replaced = vm.process.iter().flat_map(|process| &process.replaced);
        let replaced = replaced.filter(|what| !what.is_program()).map(Replaced::to_string);
        let older = if vm.renew_at.is_some() { RENEWED } else { OLDER };
        let is_older = vm.process.as_ref().is_some_and(|process| process.is_older);
        let replaced = replaced.chain(is_older.then(|| older.to_owned())).collect();
        VmStatus {
            name: vm.name().to_owned(),
            state: state(vm).to_owned(),
            socket_path: vm.settings.socket_path().display().to_string(),
            pid: vm.process.as_ref().map(Process::pid),
            weight: vm.share.weight,
            class: class_name(vm.share.class).to_owned(),
            ceiling: gpus.iter().filter_map(|on| on.ceiling).reduce(least).or(vm.share.ceiling),
            // Rust's sum of no values is -0.
            share: gpus.iter().fold(0.0, |sum, on| sum + on.share),
            used: used(&usage, vm.past.workers_cpu + workers, vm.memory.held),
            device_memory_limit: bound(|limits| limits.device),
            device_memory_allowed: self.ledger.allows(index),
            device_memory_awaited: self.ledger.lacks(index),
            host_memory_limit: bound(|limits| limits.host),
            queued: usage.ready,
            device_cpu_seconds: (vm.past.device_cpu + device).as_secs_f64(),
            restarts: vm.past.restarts,
            pending: vm.pending.as_ref().map(pending),
            options: self.settings.told(&vm.settings),
            in_force: vm.process.as_ref().and_then(|process| process.in_force.clone()),
            replaced,
            kills: vm.past.kills,
            context_restarts: vm.past.context_restarts,
            context_recoveries: vm.past.context_recoveries,
            gpus,
            contexts,
        }
    }

    /// Returns whether the status shows a GPU for a VM: the VM is on this GPU, or has used it.
    fn shows(&self, vm: &Vm, gpu: usize) -> bool {
        let usage = self.gpus[gpu].tenant_usage(vm.tenant);
        usage != Usage::default() || vm.is_on(gpu)
    }

    fn vm_gpu_status(&self, vm: &Vm, on: &OnGpu, now: Nanos) -> VmGpuStatus {
        let gpu = &self.gpus[on.gpu];
        let usage = gpu.tenant_usage(vm.tenant);
        let used = used(&usage, Duration::ZERO, HeldMemory::default());
        VmGpuStatus {
            uuid: hexadecimal(&gpu.uuid),
            ceiling: effective(vm.share, self.settings.policy, self.weights_on(on.gpu)).ceiling,
            share: on.rate.over_last_second(now, usage.gpu),
            gpu_seconds: used.gpu_seconds,
            copy_seconds: used.copy_seconds,
            waiting_seconds: used.waiting_seconds,
            submissions: used.submissions,
        }
    }

    /// The contexts of a VM by number, and the processor time of their workers.
    fn contexts(&mut self, index: usize, now: Nanos) -> (Vec<ContextStatus>, Duration) {
        let (passage, vm) = (self.passage(), &self.vms[index]);
        let mut sorted: Vec<_> = vm.contexts.iter().map(|(ctx_id, context)| (ctx_id.0, context)).collect();
        sorted.sort_unstable_by_key(|(number, _)| *number);
        let mut workers = Duration::ZERO;
        let contexts = sorted.into_iter().map(|(number, context)| {
            let (mut usages, mut share, mut cpu) = (Vec::new(), 0.0, Duration::ZERO);
            for (gpu, key) in context.places(&vm.gpus) {
                let usage = self.gpus[gpu].usage(key);
                usages.push(usage);
                if let Some(here) = self.gpus[gpu].context(key) {
                    share += here.rate.over_last_second(now, usage.gpu);
                    cpu += here.cpu;
                }
            }
            workers += cpu;
            let usage = sum(usages);
            ContextStatus {
                context: number,
                name: context.name.clone(),
                state: context_state(&usage, context.movable, passage).to_owned(),
                share,
                used: used(&usage, cpu, context.memory),
                queued: usage.ready,
                movable: movable(context.movable),
                recoverable: context.recoverable,
                gpus: context.places(&vm.gpus).map(|(gpu, _)| hexadecimal(&self.gpus[gpu].uuid)).collect(),
            }
        });
        (contexts.collect(), workers)
    }
}

/// Returns the sum of the usages of several GPUs.
fn sum(usages: impl IntoIterator<Item = Usage>) -> Usage {
    usages.into_iter().fold(Usage::default(), Usage::and)
}

/// Returns in which state a VM is.
pub(super) fn state(vm: &Vm) -> &'static str {
    match &vm.process {
        None if vm.is_starting || !vm.was_started => "starting",
        None => "ended",
        Some(process) if process.dying => "ended",
        Some(_) if vm.ending.is_some() => "ending",
        Some(process) if process.connected => "connected",
        Some(process) if process.ready => "waiting",
        Some(_) => "starting",
    }
}

/// Returns the change that the file makes to a VM and that takes effect when its frontend has disconnected.
fn pending(pending: &Pending) -> PendingStatus {
    match pending {
        Pending::Replace(_, keys) => PendingStatus::Restart { keys: keys.clone() },
        Pending::Remove => PendingStatus::Removal,
    }
}

/// Returns whether a context can be restarted, in words.
fn movable(movable: Option<Result<(), Unmovable>>) -> String {
    match movable {
        None => String::new(),
        Some(Ok(())) => "yes".to_owned(),
        Some(Err(why)) => why.to_string(),
    }
}

/// Returns the bytes that a VM may take of a GPU with `memory` bytes. If the bound is a part of the memory, the VM's device process tells it in bytes.
fn promised(vm: &Vm, memory: u64) -> u64 {
    match (vm.settings.options.quotas.device_memory, vm.memory.limits) {
        // A VM without a bound may take all memory of the GPU.
        (None, _) => memory,
        (Some(Amount::Part(_)), Some(told)) => told.device,
        (Some(amount), _) => amount.of(memory),
    }
}

/// Returns the state of a context. Where submissions are only counted, a context with a lease need not be alone.
fn context_state(usage: &Usage, movable: Option<Result<(), Unmovable>>, passage: Passage) -> &'static str {
    match usage {
        _ if movable == Some(Err(Unmovable::SwappedOut)) => "swapped out",
        _ if movable == Some(Err(Unmovable::Waits)) => "awaits memory",
        Usage { leased: true, .. } if passage == Passage::ByGrant => "alone",
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
