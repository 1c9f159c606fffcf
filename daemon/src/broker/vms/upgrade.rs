//! Writes the broker down for the program that follows it, and builds it up again in that program.

use super::super::connections::{Connections, Peer};
use super::super::control::{self, Answer};
use super::super::grant_log::GrantLog;
use super::super::process::Process;
use super::super::rates::Rate;
use super::super::reload::{Asker, How};
use super::super::report::vms as number_of_vms;
use super::super::run::{Broker, END_PATIENCE, Upkeep, serve_as};
use super::super::settings::VmsFile;
use super::super::source::Source;
use super::super::upgrade::passing::{Inherited, Pass};
use super::super::vm::{OnGpu, Vm, VmContext};
use super::state::{BrokerState, PassedContext, PassedGpu, PassedOnGpu, PassedPlace, PassedVm, Predecessor};
use outside::Span;
use readiness::{Events, unwatch};
use sched::{ContextKey, Nanos};
use shm::{Listener, page_clock};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Serves the VMs of a broker of an earlier program, which this one follows in the same process, as [`serve`](super::super::serve) does.
///
/// # Errors
///
/// As [`serve`](super::super::serve), or some of the state that was passed on is missing.
pub fn follow(before: Predecessor, file: VmsFile) -> io::Result<()> {
    serve_as(Broker::resume(before, file)?)
}

impl Broker {
    /// Writes the broker down as it is now. `asker` is the operator who is to be told the result.
    pub(in crate::broker) fn state(
        &self,
        asker: Option<Peer>,
        now: Nanos,
        pass: &mut Pass<'_>,
    ) -> io::Result<BrokerState> {
        let asker = asker.and_then(|peer| self.connections.socket(peer));
        let gpus = self.gpus.iter().map(|gpu| PassedGpu { gpu: gpu.shared(), is_drained: gpu.is_drained });
        Ok(BrokerState {
            version: VERSION.to_owned(),
            stopped: now,
            settings: self.settings.clone(),
            groups: self.groups.clone(),
            listeners: self.connections.pass_on(pass)?,
            asker: asker.map(&mut *pass).transpose()?,
            log: self.log.as_ref().map(|log| pass(log.as_fd())).transpose()?,
            gpus: gpus.collect(),
            ledger: self.ledger.clone(),
            added: self.vms.added(),
            last_key: self.last_key,
            vms: self
                .vms
                .indexed()
                .map(|(index, vm)| self.passed(index, vm, pass))
                .collect::<io::Result<_>>()?,
        })
    }

    fn passed(&self, index: usize, vm: &Vm, pass: &mut Pass<'_>) -> io::Result<PassedVm> {
        let on = |on: &OnGpu| PassedOnGpu { gpu: on.gpu, ended: self.gpus[on.gpu].ended(vm.tenant) };
        let process = vm.process.as_ref().map(|process| process.pass_on(pass)).transpose()?.flatten();
        let contexts = vm.contexts.iter().map(|(ctx_id, context)| {
            Ok(PassedContext {
                ctx_id: *ctx_id,
                name: context.name.clone(),
                doorbell: pass(context.doorbell.as_fd())?,
                killed: context.killed,
                places: self.passed_places(vm, context, pass)?,
            })
        });
        Ok(PassedVm {
            index,
            contexts: contexts.collect::<io::Result<_>>()?,
            settings: vm.settings.clone(),
            share: vm.share,
            gpus: vm.gpus.iter().map(on).collect(),
            placement: vm.placement.clone(),
            process,
            start_at: vm.start_at,
            was_started: vm.was_started,
            ending: vm.ending,
            is_leaving: vm.is_leaving,
            pending: vm.pending.clone(),
            taken: vm.taken.clone(),
            backoff: vm.backoff,
            limits: vm.memory.limits,
            past: vm.past,
        })
    }

    fn passed_places(
        &self,
        vm: &Vm,
        context: &VmContext,
        pass: &mut Pass<'_>,
    ) -> io::Result<Vec<PassedPlace>> {
        let mut places = Vec::new();
        for (place, key) in &context.keys {
            let on = vm.gpus.get(usize::from(*place)).zip(context.pages.get(place));
            let Some((on, page)) = on else { continue };
            let Some((reached, standing)) = self.gpus[on.gpu].standing(*key) else { continue };
            places.push(PassedPlace {
                place: *place,
                key: key.0,
                page: pass(page.as_fd())?,
                reached,
                standing,
            });
        }
        Ok(places)
    }

    /// Builds up the broker that goes on in place of one of an earlier program. `file` is its configuration file.
    ///
    /// # Errors
    ///
    /// The system refuses a descriptor that the loop needs, or some of the state that was passed on is missing.
    pub(in crate::broker) fn resume(before: Predecessor, file: VmsFile) -> io::Result<Self> {
        let Predecessor { state, mut inherited } = before;
        // The thread still has the timer slack of the earlier program, and threads that it starts would inherit it.
        let _ = rustix::thread::set_current_timer_slack(None);
        let epoll = Arc::new(readiness::instance()?);
        let connections = Connections::resume(state.listeners, &mut inherited, &epoll)?;
        let upkeep = Some(Upkeep::new(file, &connections, &epoll)?);
        let log = state.log.map(|log| inherited.take(log).map(File::from)).transpose()?;
        let mut broker = Self::at(state.settings, connections, epoll)?;
        (broker.log, broker.upkeep, broker.was_ready) = (log.map(GrantLog::resume), upkeep, true);
        (broker.groups, broker.last_key) = (state.groups, state.last_key);
        let now = page_clock();
        (broker.ledger, broker.next_room) = (state.ledger, Some(now));
        broker.resume_vms(state.gpus, state.vms, &mut inherited, now);
        let asker = state.asker.map(|socket| inherited.take(socket)).transpose()?;
        let asker = asker.and_then(|socket| broker.connections.adopt(socket, &broker.epoll, now));
        broker.has_followed(asker, &state.version, (state.stopped, now));
        Ok(broker)
    }

    /// Goes on with GPUs and VMs of an earlier program. A VM of which a part is missing loses only its own device process, and begins anew.
    pub(in crate::broker) fn resume_vms(
        &mut self,
        gpus: Vec<PassedGpu>,
        vms: Vec<PassedVm>,
        inherited: &mut Inherited,
        now: Nanos,
    ) {
        for PassedGpu { gpu, is_drained } in gpus {
            let mut gpu = self.new_gpu(gpu);
            gpu.is_drained = is_drained;
            self.gpus.push(gpu);
        }
        for vm in vms {
            let index = vm.index;
            if let Err(error) = self.resume_vm(vm, inherited, now) {
                log::error!(vm = self.vms[index].name(); "the VM cannot be taken over, so it gets a new device process: {error}");
                self.disown(index, "it was not taken over");
                if self.vms[index].process.is_none() {
                    self.vms[index].start_at = Some(now);
                }
            }
        }
        self.set_shares(now);
    }

    fn resume_vm(&mut self, passed: PassedVm, inherited: &mut Inherited, now: Nanos) -> io::Result<()> {
        let index = passed.index;
        let process = passed.process.map(|process| Process::resume(process, inherited)).transpose();
        let vm = self.vms.resume(index, passed.settings, now);
        let tenant = vm.tenant;
        vm.share = passed.share;
        vm.placement = passed.placement;
        vm.start_at = passed.start_at;
        vm.was_started = passed.was_started;
        vm.ending = passed.ending;
        vm.is_leaving = passed.is_leaving;
        vm.pending = passed.pending;
        vm.taken = passed.taken;
        vm.backoff = passed.backoff;
        vm.memory.limits = passed.limits;
        vm.past = passed.past;
        for PassedOnGpu { gpu, ended } in passed.gpus {
            vm.gpus.push(OnGpu { gpu, contexts: 0, rate: Rate::default() });
            self.gpus[gpu].set_tenant(tenant, vm.share, now);
            self.gpus[gpu].resume_tenant(tenant, ended);
        }
        self.log.iter_mut().for_each(|log| log.name(tenant, Some(self.vms[index].name())));
        if let Some(process) = process? {
            self.resume_process(index, process)?;
        }
        let mut contexts = passed.contexts.into_iter();
        contexts.try_for_each(|context| self.resume_context(index, context, inherited, now))
    }

    fn resume_process(&mut self, index: usize, mut process: Process) -> io::Result<()> {
        let watched = self.watch_process(index, &process);
        let (is_dying, flushed) = (process.dying, if process.dying { Ok(false) } else { process.flush() });
        if is_dying {
            let _ = unwatch(&self.epoll, process.channel());
        }
        self.vms[index].process = Some(process);
        if !is_dying {
            self.sent(index, flushed);
        }
        watched
    }

    fn resume_context(
        &mut self,
        index: usize,
        passed: PassedContext,
        inherited: &mut Inherited,
        now: Nanos,
    ) -> io::Result<()> {
        let doorbell =
            Listener::new(inherited.take(passed.doorbell)?, &self.epoll, Source::Doorbell.token(index))?;
        let mut context = VmContext { killed: passed.killed, ..VmContext::new(passed.name, doorbell) };
        let (vm, mut resumed) = (&mut self.vms[index], Ok(()));
        for PassedPlace { place, key, page, reached, standing } in passed.places {
            let Some(on) = vm.gpus.get_mut(usize::from(place)) else { continue };
            let (gpu, who, key) = (&mut self.gpus[on.gpu], (vm.tenant, passed.ctx_id), ContextKey(key));
            let taken = inherited.take(page).and_then(|page| {
                gpu.resume(key, who, &page, (reached, standing), now).map_err(io::Error::other).map(|()| page)
            });
            let Ok(page) = taken.map_err(|error| resumed = Err(error)) else { break };
            self.log.iter_mut().for_each(|log| log.knows(key, standing.used));
            on.contexts += 1;
            context.keys.insert(place, key);
            context.pages.insert(place, page);
        }
        // The context is kept even without its pages, because it ends with its device process.
        vm.contexts.insert(passed.ctx_id, context);
        resumed
    }

    /// Reports that this program has followed another, gives VMs that are off device processes of this one, and reads the file: a signal to read it
    /// may have come while no program could receive it.
    fn has_followed(&mut self, asker: Option<Peer>, from: &str, (stopped, now): (Nanos, Nanos)) {
        let from: String = from.chars().map(outside::visible).take(64).collect();
        let (mut renewed, mut later) = (Vec::new(), Vec::new());
        for index in self.vms.by_name() {
            // A frontend may have connected while no program listened.
            self.channel(index, Events::EPOLLIN, now);
            let vm = &mut self.vms[index];
            let Some(process) = vm.process.as_ref().filter(|process| !process.dying) else { continue };
            if process.connected {
                later.push(vm.name().to_owned());
                vm.renew_at = Some(now);
                continue;
            }
            renewed.push(vm.name().to_owned());
            vm.end_process(now.saturating_add(END_PATIENCE));
        }
        let contexts = self.vms.iter().map(|vm| vm.contexts.len()).sum();
        let pause = now.saturating_sub(stopped);
        log::info!(
            "version {VERSION} has taken over from version {from}, which was away for {}: {}, {contexts} contexts",
            Span(Duration::from_nanos(pause)),
            number_of_vms(renewed.len() + later.len())
        );
        let (from, to, pause_ms) = (from, VERSION.to_owned(), pause / 1_000_000);
        let answer = Answer::Upgraded { from, to, pause_ms, contexts, renewed, later };
        if let Some(peer) = asker {
            self.connections.stream(peer, &control::line(&answer), true, &self.epoll, now);
        }
        self.read_again(Asker { peer: None, how: How::default() }, now);
    }
}
