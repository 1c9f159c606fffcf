//! Starts device processes, handles their messages, ends them and starts them again. If one misbehaves, it alone is ended.

mod drains;
mod moves;
pub(super) mod one_vm;
mod reload;
mod renewal;
mod restarts;
mod room;
pub(super) mod state;
mod succession;
#[cfg(test)]
mod tests;
mod traces;
pub(super) mod upgrade;

use super::gpu::Gpu;
use super::process::Process;
use super::rates::Rate;
use super::run::Broker;
use super::settings::Settings;
use super::settings::share::effective;
use super::source::Source;
use super::starter::Started;
use super::vm::{Asked, OnGpu, Successor, Vm, VmContext};
use crate::ipc::{FromBroker, HeldMemory, InForce, Placement, Replaced, SharedGpu, ToBroker};
use crate::options::{PATH_BYTES, VmGroup};
use crate::sandbox::START_AGAIN;
use config::{GPUS_MAX, PLUG_AGAIN, Passage};
use log::Level;
use outside::{Span, visible};
use protocol::ids::ContextId;
use readiness::{Events, unwatch, watch, watch_for};
use sched::{ContextKey, Nanos, nanos};
use shm::{Listener, SchedulerSide};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// The most messages that are read from one device process before other events get their turn.
const MESSAGES_PER_TURN: usize = 8;
/// Bytes of a name that a guest or a driver gave.
const NAME_BYTES: usize = 64;

impl Broker {
    /// Starts the device processes whose time has come. A start waits while a process that is ending still has the same paths.
    pub(super) fn start_due(&mut self, now: Nanos) {
        // The program that follows starts them, or this program if the upgrade fails.
        if self.comes_to_rest() {
            return;
        }
        for index in self.vms.indices() {
            if self.vms[index].start_at.is_some_and(|at| at <= now) {
                self.vms[index].start_at = None;
                if self.others_have(&self.vms[index].settings.own_paths) {
                    continue;
                }
                match self.groups.group(&self.vms[index]) {
                    Ok(group) => self.start(index, group),
                    Err(error) => self.cannot_start(index, &error, now),
                }
            }
        }
    }

    fn others_have(&self, paths: &[PathBuf]) -> bool {
        self.vms.iter().any(|vm| vm.taken.iter().any(|path| paths.contains(path)))
    }

    fn start(&mut self, index: usize, group: Option<VmGroup>) {
        let vm = &mut self.vms[index];
        let start = self.settings.start(&vm.settings, group, false);
        let Some(upkeep) = &self.upkeep else { return };
        upkeep.starter.start(index, vm.name(), start);
        vm.is_starting = true;
        vm.taken.clone_from(&vm.settings.own_paths);
        self.manager.status_changed();
    }

    /// Takes over the device processes that have been started.
    pub(super) fn take_started(&mut self, now: Nanos) {
        let started = self.upkeep.as_ref().map(|upkeep| upkeep.starter.started());
        for Started { vm: index, follows, process: started } in started.into_iter().flatten() {
            if follows {
                self.take_successor(index, started, now);
                continue;
            }
            self.vms[index].is_starting = false;
            if let Err(error) = started.and_then(|process| self.take(index, process)) {
                self.cannot_start(index, &error, now);
            }
        }
    }

    fn take(&mut self, index: usize, mut process: Process) -> io::Result<()> {
        if let Err(error) = self.watch_process(index, &process) {
            process.kill();
            let _ = process.reap();
            return Err(error);
        }
        let vm = &mut self.vms[index];
        log::info!(vm = vm.name(), pid = process.pid(); "a device process starts");
        if vm.ending.is_some() {
            process.terminate();
        }
        vm.process = Some(process);
        self.manager.status_changed();
        Ok(())
    }

    fn cannot_start(&mut self, index: usize, error: &io::Error, now: Nanos) {
        log::error!(vm = self.vms[index].name(); "cannot start the device process: {error}");
        self.was_started(index);
        self.has_ended(index, Duration::ZERO, now);
    }

    /// Plans the next start for a VM without a device process, or forgets the VM. The last device process lived for `life`.
    fn has_ended(&mut self, index: usize, life: Duration, now: Nanos) {
        let vm = &mut self.vms[index];
        vm.taken.clear();
        let was_asked = vm.ending.take().is_some();
        if self.is_ending {
            return;
        }
        self.take_effect(index);
        let vm = &mut self.vms[index];
        if vm.is_leaving {
            self.forget(index, now);
        } else if was_asked {
            // The VM gets the present settings of the file at once.
            vm.start_at = Some(now);
            vm.past.restarts += 1;
        } else {
            self.start_later(index, life, now);
        }
        // Other VMs may have waited for the paths of this VM.
        self.vms
            .iter_mut()
            .filter(|vm| vm.is_idle() && !vm.is_leaving)
            .for_each(|vm| vm.start_at = Some(now));
    }

    /// Forgets a VM that has left the file, if it has no device process any more.
    fn forget_left(&mut self, index: usize, now: Nanos) {
        if self.vms.get(index).is_some_and(|vm| vm.is_leaving && vm.is_idle()) {
            self.forget(index, now);
        }
    }

    /// Forgets a VM that has left the file and has no device process any more: at once, or when its successor has ended.
    pub(super) fn forget(&mut self, index: usize, now: Nanos) {
        if self.vms.get(index).is_some_and(|vm| vm.successor.is_some() || vm.awaits_successor) {
            return;
        }
        let Some(vm) = self.vms.remove(index) else { return };
        for on in &vm.gpus {
            self.gpus[on.gpu].remove_tenant(vm.tenant);
        }
        self.groups.leave(&vm, now);
        self.log.iter_mut().for_each(|log| log.name(vm.tenant, None));
        log::info!(vm = vm.name(); "the VM is removed: the configuration file does not name it, and its device process has ended");
        self.set_shares(now);
        self.manager.status_changed();
    }

    pub(super) fn watch_process(&self, index: usize, process: &Process) -> io::Result<()> {
        watch(&self.epoll, process.channel(), Source::Channel.token(index), Events::EPOLLIN)?;
        let end = |pidfd| watch(&self.epoll, pidfd, Source::Child.token(index), Events::EPOLLIN);
        process.pidfd().map_or(Ok(()), end)
    }

    fn start_later(&mut self, index: usize, life: Duration, now: Nanos) {
        let vm = &mut self.vms[index];
        let pause = vm.backoff.pause_after(life);
        vm.past.restarts += 1;
        vm.start_at = Some(now.saturating_add(nanos(pause)));
        log::info!(vm = vm.name(); "the device process is started again after {}", Span(pause));
    }

    /// Handles the end of a device process.
    pub(super) fn child_ended(&mut self, index: usize, now: Nanos) {
        if self.vms.get(index).is_none_or(|vm| vm.process.is_none()) {
            return;
        }
        // The successor may have said that it serves.
        self.hear_successor(index, now);
        let goes_on = |successor: &Successor| successor.serves && !successor.process.dying;
        let is_passed_on = self.vms[index].successor.as_ref().is_some_and(goes_on);
        if is_passed_on {
            self.hear_last(index, now);
        }
        let Some(mut process) = self.vms[index].process.take() else { return };
        // The process can be asked for this only until it is reaped.
        let cpu = process.cpu_time();
        self.unwatch(&process);
        let status = process.reap();
        let is_over = status.as_ref().is_ok_and(ExitStatus::success);
        let follows = |successor: &Successor| successor.serves || is_over && successor.offer.is_some();
        let is_followed = self.vms[index].successor.as_ref().is_some_and(follows);
        let starts_again = status.as_ref().is_ok_and(|status| status.code() == Some(START_AGAIN.into()));
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        let life = process.age();
        self.was_started(index);
        let vm = &mut self.vms[index];
        vm.past.device_cpu += cpu;
        vm.memory = Asked::default();
        if vm.ending.is_some() || starts_again || is_followed {
            log::info!(vm = vm.name(); "the device process has ended ({status})");
        } else {
            let consequence = if process.connected { PLUG_AGAIN } else { "no VM was connected to it" };
            let life = Span(life);
            log::error!(vm = vm.name(); "the device process has ended ({status}) after {life}: {consequence}");
        }
        if !self.succeed(index, now) {
            self.has_ended(index, life, now);
        }
    }

    /// Ends all contexts of a VM, because no device process goes on with them.
    pub(super) fn all_ends(&mut self, index: usize, now: Nanos) {
        for (_, context) in std::mem::take(&mut self.vms[index].contexts) {
            self.context_ended(index, &context, now);
        }
        self.no_restarts_of(index, "its device process has ended, and the context with it", now);
        self.ledger.ends(index, now);
        self.room_due(now);
    }

    /// Handles the messages about contexts that a device process sent before it passed the contexts on.
    fn hear_last(&mut self, index: usize, now: Nanos) {
        while let Some(process) = self.vms[index].process.as_ref().filter(|process| !process.dying) {
            let Ok(Some((message, file))) = process.receive() else { return };
            if let Err(error) = self.message(index, message, file, now) {
                return self.disown(index, &error);
            }
        }
    }

    fn unwatch(&self, process: &Process) {
        let _ = unwatch(&self.epoll, process.channel());
        process.pidfd().into_iter().for_each(|pidfd| _ = unwatch(&self.epoll, pidfd));
    }

    /// Handles an event of a device process's channel: the process has sent a message, reads again, or is gone.
    pub(super) fn channel(&mut self, index: usize, flags: Events, now: Nanos) {
        if self.vms.get(index).is_none() {
            return;
        }
        if flags.contains(Events::EPOLLOUT) {
            let flushed = self.vms[index].process.as_mut().map_or(Ok(false), Process::flush);
            self.sent(index, flushed);
        }
        for _ in 0..MESSAGES_PER_TURN {
            let Some(process) = self.vms[index].process.as_ref().filter(|process| !process.dying) else {
                return;
            };
            let heard = match process.receive() {
                Ok(None) => return,
                Ok(Some((message, file))) => self.message(index, message, file, now),
                Err(error) => Err(error),
            };
            if let Err(error) = heard {
                return self.disown(index, &error);
            }
        }
    }

    /// Sends a message to the device process of a VM, if it has one, or to a successor that serves: the other does nothing any more.
    pub(super) fn tell(&mut self, index: usize, message: FromBroker) {
        let vm = &mut self.vms[index];
        if let Some(successor) = vm.successor.as_mut().filter(|successor| successor.serves) {
            // Messages that wait are sent when the successor has the other's place. If one cannot be sent, the successor is killed.
            if successor.process.send(message).is_err() {
                successor.kill();
            }
            return;
        }
        let Some(process) = vm.process.as_mut().filter(|process| !process.dying) else { return };
        let sent = process.send(message);
        self.sent(index, sent);
    }

    fn sent(&mut self, index: usize, sent: Result<bool, String>) {
        let some_wait = match sent {
            Ok(some_wait) => some_wait,
            Err(error) => return self.disown(index, &error),
        };
        let Some(process) = &self.vms[index].process else { return };
        let out = if some_wait { Events::EPOLLOUT } else { Events::empty() };
        // The channel is watched as long as the process exists.
        let channel = process.channel();
        let _ = watch_for(&self.epoll, channel, Source::Channel.token(index), Events::EPOLLIN | out);
    }

    /// Kills a device process that misbehaves. Its contexts end when the process is gone.
    pub(super) fn disown(&mut self, index: usize, why: &str) {
        let passage = self.passage();
        let vm = &mut self.vms[index];
        let Some(process) = vm.process.as_mut().filter(|process| !process.dying) else { return };
        process.kill();
        let _ = unwatch(&self.epoll, process.channel());
        // While all processes end, or when this one has just ended, a closed channel is no fault.
        let name = vm.name();
        let level = if passage == Passage::ByGrant { Level::Info } else { Level::Debug };
        log::log!(level, vm = name; "the device process is ended: {why}");
    }

    /// Handles a message of a device process.
    ///
    /// # Errors
    ///
    /// The process must not send this message.
    fn message(
        &mut self,
        index: usize,
        message: ToBroker,
        file: Option<OwnedFd>,
        now: Nanos,
    ) -> Result<(), String> {
        match message {
            ToBroker::Ready { gpus, limits, in_force } => {
                self.ready(index, &gpus, limits, now)?;
                self.settled(index, in_force);
                Ok(())
            }
            ToBroker::Replaced { what } => {
                self.replaced(index, what);
                Ok(())
            }
            ToBroker::Frontend { connected } => {
                if let Some(process) = &mut self.vms[index].process {
                    process.connected = connected;
                }
                self.manager.status_changed();
                if !connected {
                    self.frontend_gone(index, now);
                }
                Ok(())
            }
            ToBroker::ContextBegins { ctx_id, debug_name } => {
                let file = file.ok_or("a context begins without its doorbell")?;
                self.context_begins(index, ctx_id, &debug_name, file)
            }
            ToBroker::ContextComes { ctx_id, gpu } => {
                let file = file.ok_or("a context comes to a GPU without its page")?;
                self.context_comes(index, ctx_id, gpu, file, now)
            }
            ToBroker::ContextLeaves { ctx_id, gpu } => {
                self.context_leaves(index, ctx_id, gpu, now);
                Ok(())
            }
            ToBroker::ContextEnds { ctx_id, lost, hung } => {
                self.context_ends(index, ctx_id, lost.as_deref(), hung, now)
            }
            ToBroker::Memory { contexts, vm, unmovable, recoverable } => {
                self.vms[index].hold(&contexts, vm, now);
                self.vms[index].can_move(&contexts, unmovable);
                self.vms[index].can_be_recovered(&contexts, &recoverable);
                Ok(())
            }
            ToBroker::Recovered { ctx_id } => {
                self.vms[index].recovered(ctx_id);
                Ok(())
            }
            ToBroker::Room(state) => {
                self.room_told(index, state, now);
                Ok(())
            }
            ToBroker::Restarting { ctx_id, stage } => {
                self.restart_goes_on(index, ctx_id, stage);
                Ok(())
            }
            ToBroker::Restarted { ctx_id, outcome } => {
                self.restart_ends(index, ctx_id, outcome.as_ref().copied().map_err(String::as_str), now);
                Ok(())
            }
        }
    }

    /// Notes that a device process is ready, and which GPUs the VM is on. The process has read no guest byte yet, so the message can be trusted.
    fn ready(
        &mut self,
        index: usize,
        gpus: &[SharedGpu],
        limits: HeldMemory,
        now: Nanos,
    ) -> Result<(), String> {
        let Some(process) = &mut self.vms[index].process else { return Ok(()) };
        if std::mem::replace(&mut process.ready, true) {
            return Err("it is ready twice".into());
        }
        let seen = gpus.iter().take_while(|gpu| !gpu.spare).count();
        if gpus.len() > GPUS_MAX || seen == 0 || !gpus[seen..].iter().all(|gpu| gpu.spare) {
            return Err(format!("it has {} GPUs, of which its guest sees {seen}", gpus.len()));
        }
        let uuids = || gpus.iter().map(|gpu| gpu.uuid);
        if uuids().enumerate().any(|(at, uuid)| uuids().take(at).any(|other| other == uuid)) {
            return Err("it has a GPU twice".into());
        }
        let places: Vec<usize> = gpus.iter().map(|gpu| self.gpu(gpu)).collect();
        self.set_gpus(index, &places);
        self.vms[index].placement = Placement::own(seen);
        self.place(index);
        self.vms[index].memory.limits = Some(limits);
        let names: Vec<_> = places[..seen].iter().map(|gpu| self.gpus[*gpu].name.as_str()).collect();
        log::info!(vm = self.vms[index].name(), gpu = names.join(", "); "the VM's device is ready");
        self.set_shares(now);
        self.room_begins(index);
        self.was_started(index);
        Ok(())
    }

    /// Notes the settings that a device process has reported at its start.
    fn settled(&mut self, index: usize, in_force: InForce) {
        let (memory, queues) = (printable(&in_force.memory), printable(&in_force.queues));
        if let Some(process) = &mut self.vms[index].process {
            process.in_force = Some(InForce { memory, queues, ..in_force });
        }
    }

    /// Notes that a file was replaced on which a device process depends. The program is the same for all VMs, so the log reports it once.
    fn replaced(&mut self, index: usize, what: Replaced) {
        let what = what.map_path(|path| shown(&path.to_string_lossy(), PATH_BYTES).into());
        let is_news = what.is_program() && self.replaced_program().is_none();
        if self.passage() == Passage::ByGrant && is_news {
            log::info!(
                "{what}: broker and VMs still run the old one; `vhost-user-vulkan upgrade` replaces the broker by the new one"
            );
        }
        if let Some(process) = &mut self.vms[index].process {
            process.note_replaced(what);
        }
    }

    /// Returns the replaced program, if a device process has reported one.
    pub(super) fn replaced_program(&self) -> Option<&Replaced> {
        let processes = self.vms.iter().filter_map(|vm| vm.process.as_ref());
        processes.flat_map(|process| &process.replaced).find(|what| what.is_program())
    }

    /// Notes that a start has succeeded or failed, for the service manager.
    fn was_started(&mut self, index: usize) {
        self.vms[index].was_started = true;
        self.manager.status_changed();
    }

    /// Returns the index of this GPU, which is added if it is new.
    fn gpu(&mut self, shared: &SharedGpu) -> usize {
        let known = self.gpus.iter().position(|gpu| gpu.uuid == shared.uuid);
        known.unwrap_or_else(|| {
            let (name, driver) = (printable(&shared.name), printable(&shared.driver));
            let gpu = SharedGpu { name, driver, ..shared.clone() };
            self.gpus.push(self.new_gpu(gpu));
            self.gpus.len() - 1
        })
    }

    /// Returns a GPU without contexts, to be shared as the settings say.
    fn new_gpu(&self, gpu: SharedGpu) -> Gpu {
        let Settings { anticipation, hardware_slices, .. } = self.settings;
        Gpu::new(gpu, anticipation, hardware_slices, self.passage())
    }

    /// Sets the GPUs of a VM, which are the same as before if the VM has contexts.
    fn set_gpus(&mut self, index: usize, places: &[usize]) {
        let vm = &mut self.vms[index];
        let mut before = std::mem::take(&mut vm.gpus);
        for gpu in places {
            let known = before.iter().position(|on| on.gpu == *gpu).map(|known| before.swap_remove(known));
            vm.gpus.push(known.unwrap_or(OnGpu { gpu: *gpu, contexts: 0, rate: Rate::default() }));
        }
        if !before.is_empty() {
            // Drivers may give their GPUs new UUIDs when they are updated.
            log::warn!(vm = vm.settings.name.as_str(); "the VM is on another GPU than before");
        }
        for on in before {
            let usage = self.gpus[on.gpu].remove_tenant(vm.tenant);
            vm.past.usage = vm.past.usage.and(usage);
        }
    }

    /// Tells the schedulers the share of each VM.
    pub(super) fn set_shares(&mut self, now: Nanos) {
        (0..self.gpus.len()).for_each(|gpu| self.set_shares_on(gpu, now));
    }

    /// Tells the scheduler of a GPU the share of each VM.
    fn set_shares_on(&mut self, gpu: usize, now: Nanos) {
        let weights = self.weights_on(gpu);
        for vm in self.vms.iter().filter(|vm| vm.is_on(gpu)) {
            let share = effective(vm.share, self.settings.policy, weights);
            self.gpus[gpu].set_tenant(vm.tenant, share, now);
        }
    }

    /// Returns the sum of the weights of the VMs that are on this GPU, or may turn out to be.
    pub(super) fn weights_on(&self, gpu: usize) -> u64 {
        self.may_be_on(gpu).map(|vm| u64::from(vm.share.weight)).sum()
    }

    /// Returns the VMs that are on this GPU, or may turn out to be.
    pub(super) fn may_be_on(&self, gpu: usize) -> impl Iterator<Item = &Vm> {
        self.vms.iter().filter(move |vm| vm.gpus.is_empty() || vm.is_on(gpu))
    }

    /// Adds a context, which is on no GPU yet.
    fn context_begins(
        &mut self,
        index: usize,
        ctx_id: ContextId,
        name: &str,
        doorbell: OwnedFd,
    ) -> Result<(), String> {
        let vm = &mut self.vms[index];
        if !vm.process.as_ref().is_some_and(|process| process.ready) {
            return Err("a context begins before the device is ready".into());
        }
        if vm.contexts.contains_key(&ctx_id) {
            return Err(format!("context {} begins twice", ctx_id.0));
        }
        if vm.contexts.len() >= vm.settings.contexts() {
            vm.past.kills.refused += 1;
            self.tell(index, FromBroker::Kill { ctx_id });
            return Ok(());
        }
        let listener = Listener::new(doorbell, &self.epoll, Source::Doorbell.token(index));
        let listener = listener.map_err(|error| format!("the doorbell of a context: {error}"))?;
        vm.contexts.insert(ctx_id, VmContext::new(printable(name), listener));
        Ok(())
    }

    /// Adds a context to one of its VM's GPUs.
    fn context_comes(
        &mut self,
        index: usize,
        ctx_id: ContextId,
        gpu: u8,
        file: OwnedFd,
        now: Nanos,
    ) -> Result<(), String> {
        let vm = &mut self.vms[index];
        let Some(place) = vm.gpus.get(usize::from(gpu)).map(|on| on.gpu) else {
            return Err(format!("context {} comes to GPU {gpu} of {}", ctx_id.0, vm.gpus.len()));
        };
        let was_on = vm.is_on(place);
        // A context that was refused is not known.
        let Some(context) = vm.contexts.get_mut(&ctx_id) else { return Ok(()) };
        if context.keys.contains_key(&gpu) {
            return Err(format!("context {} comes to GPU {gpu} twice", ctx_id.0));
        }
        let page = SchedulerSide::open(&file).map_err(|error| format!("the page of a context: {error}"))?;
        self.last_key += 1;
        let key = ContextKey(self.last_key);
        context.keys.insert(gpu, key);
        if self.upkeep.is_some() {
            context.pages.insert(gpu, file);
        }
        vm.gpus[usize::from(gpu)].contexts += 1;
        let tenant = vm.tenant;
        if !was_on {
            self.set_shares_on(place, now);
        }
        self.room_moves(index);
        self.gpus[place].begin(key, (tenant, ctx_id), page, now);
        self.gpus[place].trace(key, self.requests.traces.is_taken_of(index));
        Ok(())
    }

    /// Removes a context from one of its VM's GPUs.
    fn context_leaves(&mut self, index: usize, ctx_id: ContextId, gpu: u8, now: Nanos) {
        let vm = &mut self.vms[index];
        let Some(context) = vm.contexts.get_mut(&ctx_id) else { return };
        let Some(key) = context.keys.remove(&gpu) else { return };
        context.pages.remove(&gpu);
        let place = vm.gpus[usize::from(gpu)].gpu;
        self.context_gone_from(index, place, key, now);
    }

    fn context_ends(
        &mut self,
        index: usize,
        ctx_id: ContextId,
        lost: Option<&str>,
        hung: bool,
        now: Nanos,
    ) -> Result<(), String> {
        // A context that was refused is not known.
        let Some(context) = self.vms[index].contexts.remove(&ctx_id) else { return Ok(()) };
        self.context_ended(index, &context, now);
        self.restart_ends(index, ctx_id, Err("it has ended"), now);
        let kills = &mut self.vms[index].past.kills;
        match (context.killed, hung, lost) {
            (Some(_), ..) => kills.operator += 1,
            (None, true, _) => kills.hung += 1,
            (None, false, Some(_)) => kills.lost += 1,
            (None, false, None) => {}
        }
        Ok(())
    }

    /// Settles the usage of a context on its GPUs.
    fn context_ended(&mut self, index: usize, context: &VmContext, now: Nanos) {
        for (gpu, key) in context.places(&self.vms[index].gpus).collect::<Vec<_>>() {
            self.context_gone_from(index, gpu, key, now);
        }
    }

    fn context_gone_from(&mut self, index: usize, gpu: usize, key: ContextKey, now: Nanos) {
        let vm = &mut self.vms[index];
        if let Some(ended) = self.gpus[gpu].end(key, now, self.log.as_mut()) {
            vm.past.workers_cpu += ended.cpu;
        }
        vm.gpus.iter_mut().filter(|on| on.gpu == gpu).for_each(|on| on.contexts -= 1);
        self.room_moves(index);
        if !self.vms[index].is_on(gpu) {
            // With this context the VM has left the GPU.
            self.set_shares_on(gpu, now);
        }
    }
}

/// Returns a name for people, made safe and of bounded length.
fn printable(name: &str) -> String {
    shown(name, NAME_BYTES)
}

/// Returns the text made safe for a terminal, up to `most` bytes.
fn shown(text: &str, most: usize) -> String {
    let mut bytes = 0;
    text.chars()
        .map(visible)
        .take_while(|c| {
            bytes += c.len_utf8();
            bytes <= most
        })
        .collect()
}
