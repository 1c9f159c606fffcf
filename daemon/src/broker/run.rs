//! The broker's loop: the events that it waits for, and their order.

use super::connections::{Connections, Peer};
use super::gpu::Gpu;
use super::grant_log::GrantLog;
use super::groups::Groups;
use super::ledger::Ledger;
use super::operator::{Requests, state};
use super::reload::listener::at;
use super::reload::reader::Reader;
use super::reload::{Asker, How};
use super::report::counted;
use super::settings::{Settings, VmSettings, VmsFile};
use super::source::Source;
use super::starter::Starter;
use super::vm::Vms;
use crate::ipc::FromBroker;
use crate::service::Manager;
use config::Passage;
use outside::Access;
use readiness::{self, Alarm, EVENTS_MAX, Event, Events, Reported};
use sched::{Nanos, TenantId};
use shm::page_clock;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use smallvec::SmallVec;
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

/// Serves the VMs until SIGTERM or SIGINT, and then ends their device processes. At SIGHUP the broker reads `file` again, from which the settings
/// come.
///
/// # Errors
///
/// The system refuses a socket or a file that the settings name, or a descriptor that the loop needs.
pub fn serve(settings: Settings, file: VmsFile) -> io::Result<()> {
    // This comes before any process is started: this process has to be the only one in its group.
    let groups = Groups::claim(&settings)?;
    serve_as(Broker { groups, ..Broker::new(settings, file)? })
}

/// Serves until the broker ends, and tidies up.
pub(super) fn serve_as(broker: Broker) -> io::Result<()> {
    let mut broker = Broker { manager: Manager::of_environment(), ..broker };
    let result = broker.run();
    broker.connections.remove_sockets();
    broker.groups.remove_all(broker.vms.iter());
    result
}

pub(super) struct Broker {
    pub(super) epoll: Arc<OwnedFd>,
    /// Wakes the loop when the next task is due.
    alarm: Alarm,
    /// The settings in force. Keys that only the next broker can take over have the file's earlier values.
    pub(super) settings: Settings,
    /// The upkeep of a broker that is a process of its own; none for a thread of a device process ([`Broker::passage`]).
    pub(super) upkeep: Option<Upkeep>,
    pub(super) vms: Vms,
    pub(super) gpus: Vec<Gpu>,
    /// Number of the last context.
    pub(super) last_key: u64,
    pub(super) log: Option<GrantLog>,
    pub(super) connections: Connections,
    pub(super) groups: Groups,
    /// The service manager, if there is one.
    pub(super) manager: Manager,
    /// An earlier program of this process has told the manager that it is ready, and the manager waits for signs of life.
    pub(super) was_ready: bool,
    /// The time at which the broker began, by the manager's clock and by the broker's.
    begun: (Instant, Nanos),
    /// The requests of operators that are being carried out.
    pub(super) requests: Requests,
    /// The memory of GPUs that VMs hold and wait for, and when to look at it again.
    pub(super) ledger: Ledger,
    pub(super) next_room: Option<Nanos>,
    /// The time at which the pages of workers that do not ring are read next.
    next_tick: Option<Nanos>,
    last_sample: Nanos,
    /// The broker ends when its device processes have ended.
    pub(super) is_ending: bool,
}

/// The upkeep of a broker that is a process of its own: it hears signals, reads its file again and starts device processes. A broker that is a thread
/// of a device process does none of these.
pub(super) struct Upkeep {
    signals: UnixStream,
    hangups: UnixStream,
    /// The configuration file, for the program that follows.
    pub(super) file: VmsFile,
    pub(super) reader: Reader<Asker<Peer>>,
    pub(super) starter: Starter,
}

impl Upkeep {
    /// Returns whether a signal to end has come that the loop has not seen yet.
    pub(super) fn hears_end(&self) -> bool {
        use rustix::net::{RecvFlags, recv};
        recv(&self.signals, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)
            .is_ok_and(|(_, bytes)| bytes > 0)
    }

    pub(super) fn new(file: VmsFile, connections: &Connections, epoll: &Arc<OwnedFd>) -> io::Result<Self> {
        Ok(Self {
            signals: take_signals(&[SIGTERM, SIGINT], epoll, Source::Signal)?,
            hangups: take_signals(&[SIGHUP], epoll, Source::Hangup)?,
            file: file.clone(),
            reader: Reader::new(file, connections.files(), epoll, Source::Read.token(0))?,
            starter: Starter::new(epoll, Source::Started.token(0))?,
        })
    }
}

/// Time between two looks at pages whose workers do not ring, in nanoseconds.
const TICK: Nanos = 50_000_000;
/// The time between two such looks if only figures for people depend on them: as seldom as rates allow ([`super::rates::Rate`]).
const TICK_COUNTED: Nanos = 200_000_000;
/// Time between two samples of the usage.
const SAMPLE: Nanos = 100_000_000;
/// The time after which the broker is ready though device processes still start, in nanoseconds. systemd allows 90 s for a start.
const READY_PATIENCE: Nanos = 60_000_000_000;
/// Time that device processes have to end.
pub(super) const END_PATIENCE: Nanos = 8_000_000_000;
/// The shortest time that the timer is set for, so that a deadline which is over cannot keep the loop busy.
const SOONEST: Nanos = 10_000;

impl Broker {
    pub(super) fn new(settings: Settings, file: VmsFile) -> io::Result<Self> {
        let epoll = Arc::new(readiness::instance()?);
        let log = settings
            .log_grants
            .as_ref()
            .map(|path| GrantLog::create(path).map_err(|error| at(&path.display().to_string(), &error)));
        let control = (settings.control_socket.as_path(), Access::of_group(settings.control_socket_group));
        let connections = Connections::listen(control, settings.metrics.as_ref(), &epoll)?;
        let upkeep = Some(Upkeep::new(file, &connections, &epoll)?);
        let mut broker = Self { log: log.transpose()?, upkeep, ..Self::at(settings, connections, epoll)? };
        broker.settings.vms.clone().into_iter().for_each(|vm| _ = broker.add(vm, page_clock()));
        Ok(broker)
    }

    /// Returns a broker without a VM, whose sockets were made already.
    pub(super) fn at(settings: Settings, connections: Connections, epoll: Arc<OwnedFd>) -> io::Result<Self> {
        let (begun, now) = (Instant::now(), page_clock());
        let alarm = Alarm::new()?;
        readiness::watch(&epoll, &alarm, Source::Timer.token(0), Events::EPOLLIN)?;
        Ok(Self {
            log: None,
            vms: Vms::default(),
            epoll,
            alarm,
            upkeep: None,
            gpus: Vec::new(),
            last_key: 0,
            connections,
            groups: Groups::default(),
            manager: Manager::default(),
            was_ready: false,
            begun: (begun, now),
            requests: Requests::default(),
            ledger: Ledger::default(),
            next_room: None,
            next_tick: None,
            last_sample: now,
            is_ending: false,
            settings,
        })
    }

    /// Returns how the broker treats submissions to its GPUs. A process of its own shares the GPUs out among several VMs; a thread of a device
    /// process counts the submissions of the only VM.
    pub(super) fn passage(&self) -> Passage {
        if self.upkeep.is_some() { Passage::ByGrant } else { Passage::Counted }
    }

    /// Adds a VM, which is served from now on. Returns its index.
    pub(super) fn add(&mut self, vm: VmSettings, now: Nanos) -> usize {
        let index = self.vms.add(vm, now);
        let vm = &self.vms[index];
        self.log.iter_mut().for_each(|log| log.name(vm.tenant, Some(vm.name())));
        index
    }

    pub(super) fn run(&mut self) -> io::Result<()> {
        // A timer may otherwise fire 50 us late, which is much between a submission and the next.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut reported = Reported::default();
        self.manager.status_changed();
        self.run_due(page_clock());
        while !self.is_over() {
            self.set_alarm()?;
            if reported.fetch(&self.epoll, None)? {
                self.turn(reported.events(), page_clock());
            }
        }
        if let Some(log) = &mut self.log {
            log.flush();
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        match self.upkeep {
            Some(_) => self.is_ending && self.vms.iter().all(|vm| vm.process.is_none() && !vm.is_starting),
            None => self.vms.iter().all(|vm| vm.process.as_ref().is_none_or(|process| process.dying)),
        }
    }

    /// Runs one turn of the loop, which begins at `now`: workers come first.
    pub(super) fn turn(&mut self, events: &[Event], now: Nanos) {
        if now.saturating_sub(self.last_sample) >= SAMPLE {
            self.sample(now);
        }
        let sources = || {
            let events = events.iter().copied();
            events.map(|Event { events, data }| (Source::of_token(data), Events::from_bits_retain(events)))
        };
        let rung = sources().filter(|((source, _), _)| *source == Some(Source::Doorbell));
        let mut rung: SmallVec<[usize; EVENTS_MAX]> = rung.map(|((_, vm), _)| vm).collect();
        rung.sort_unstable();
        rung.dedup();
        rung.into_iter().for_each(|vm| self.doorbell(vm, now));
        self.decide(now);
        for ((source, index), flags) in sources() {
            match source {
                Some(Source::Channel) => self.channel(index, flags, now),
                Some(Source::Child) => self.child_ended(index, now),
                Some(Source::Successor) => self.hear_successor(index, now),
                Some(Source::SuccessorEnd) => self.successor_ended(index, now),
                Some(Source::Started) => self.take_started(now),
                Some(Source::Timer) => self.alarm.rang(),
                Some(Source::Signal) => self.end(now),
                Some(Source::Hangup) => {
                    let hangups = self.upkeep.as_ref().map(|upkeep| &upkeep.hangups);
                    hangups.into_iter().for_each(|mut hangups| _ = hangups.read(&mut [0; 16]));
                    self.read_again(Asker { peer: None, how: How::default() }, now);
                }
                Some(Source::Read) => self.take_read(now),
                Some(Source::Rehearsed) => self.take_rehearsed(now),
                Some(Source::Listener) => self.connections.accept(index, &self.epoll, now),
                Some(Source::Connection) => self.connection(index, flags, now),
                Some(Source::Doorbell) | None => {}
            }
        }
        self.run_due(now);
    }

    /// Reads the pages of a VM's workers, because one of them has rung.
    fn doorbell(&mut self, vm: usize, now: Nanos) {
        let Some(vm) = self.vms.get(vm).filter(|vm| vm.process.is_some() && !vm.gpus.is_empty()) else {
            return;
        };
        for context in vm.contexts.values() {
            for (gpu, key) in context.places(&vm.gpus) {
                self.gpus[gpu].look(key, now, self.log.as_mut());
            }
        }
        self.next_tick.get_or_insert(now + self.tick_after());
    }

    pub(super) fn decide(&mut self, now: Nanos) {
        for gpu in &mut self.gpus {
            gpu.decide(now, self.log.as_mut());
        }
    }

    /// Carries out everything that is due, after any events.
    fn run_due(&mut self, now: Nanos) {
        self.decide(now);
        if self.next_tick.is_some_and(|at| at <= now) {
            self.tick(now);
        }
        self.start_due(now);
        self.renew_due(now);
        self.end_deaf(now);
        self.answer_due(now);
        self.trace_due(now);
        self.restarts_due(now);
        if self.next_room.is_some_and(|at| at <= now) {
            self.room_due(now);
        }
        self.connections.drop_late(&self.epoll, now);
        self.end_late(now);
        self.groups.sweep_due(now);
        if self.next_tick.is_none() && self.gpus.iter().any(Gpu::is_busy) {
            self.next_tick = Some(now + self.tick_after());
        }
        self.tell_manager(now);
        self.upgrade_due(now);
    }

    /// Tells the service manager that the loop turns, the state of the VMs, and that the broker is ready. The broker is ready when the start of each
    /// VM is over: the VM's process listens, or has failed.
    pub(super) fn tell_manager(&mut self, now: Nanos) {
        if !self.manager.is_there() {
            return;
        }
        let is_ready = self.was_ready || self.ready_by() <= now || self.vms.iter().all(|vm| vm.was_started);
        if !self.manager.knows_ready() && is_ready {
            self.manager.ready(counted(self.vms.iter().map(state)));
        }
        self.manager.turns(Instant::now(), || counted(self.vms.iter().map(state)));
    }

    /// Returns when the service manager is to get the next message.
    fn next_told(&self) -> Option<Nanos> {
        let (begin, begun) = self.begun;
        let since_begin = |at: Instant| at.saturating_duration_since(begin).as_nanos();
        let turn = self.manager.next_turn().map(since_begin);
        let turn = turn.map(|after| begun.saturating_add(u64::try_from(after).unwrap_or(u64::MAX)));
        let ready = (self.manager.is_there() && !self.manager.knows_ready()).then_some(self.ready_by());
        turn.into_iter().chain(ready).min()
    }

    /// Returns when the manager is told that the broker is ready, even if a VM is not.
    pub(super) fn ready_by(&self) -> Nanos {
        self.begun.1.saturating_add(READY_PATIENCE)
    }

    /// Kills the device processes that were asked to end and have not ended in time.
    fn end_late(&mut self, now: Nanos) {
        for vm in self.vms.iter_mut().filter(|vm| vm.end_deadline().is_some_and(|at| at <= now)) {
            log::warn!(vm = vm.name(); "the device process does not end on request: the broker kills it");
            vm.process.as_mut().into_iter().for_each(|process| process.kill());
        }
    }

    /// Kills a device process that stands still: it has not ended a context that an operator wants to end.
    pub(super) fn end_deaf(&mut self, now: Nanos) {
        for vm in self.vms.iter_mut().filter(|vm| vm.kill_deadline().is_some_and(|at| at <= now)) {
            log::error!(vm = vm.name(); "the device process has not ended a context that an operator killed: the broker kills the process");
            vm.process.as_mut().into_iter().for_each(|process| process.kill());
        }
    }

    /// Carries out the recurring tasks, now and then while GPUs are busy.
    fn tick(&mut self, now: Nanos) {
        for gpu in &mut self.gpus {
            gpu.look_at_busy(now, self.log.as_mut());
        }
        self.decide(now);
        if self.passage() == Passage::ByGrant {
            self.report_hung(now);
        }
        if let Some(log) = &mut self.log {
            log.flush();
        }
        self.next_tick = self.gpus.iter().any(Gpu::is_busy).then_some(now + self.tick_after());
    }

    fn tick_after(&self) -> Nanos {
        match self.passage() {
            Passage::ByGrant => TICK,
            Passage::Counted => TICK_COUNTED,
        }
    }

    fn sample(&mut self, now: Nanos) {
        self.last_sample = now;
        for gpu in &mut self.gpus {
            gpu.sample(now);
        }
        for vm in self.vms.iter_mut() {
            for on in &mut vm.gpus {
                on.rate.sample(now, self.gpus[on.gpu].tenant_usage(vm.tenant).gpu);
            }
        }
    }

    fn report_hung(&mut self, now: Nanos) {
        for gpu in 0..self.gpus.len() {
            let vms = &self.vms;
            let software = self.gpus[gpu].is_software();
            let limit = |vm: TenantId| vms[vm.0 as usize].settings.contended(software);
            if let Some((vm, ctx_id)) = self.gpus[gpu].hung(now, limit) {
                self.tell(vm.0 as usize, FromBroker::Hung { ctx_id });
            }
        }
    }

    /// Begins to end all device processes, after a signal.
    fn end(&mut self, now: Nanos) {
        let signals = self.upkeep.as_ref().map(|upkeep| &upkeep.signals);
        signals.into_iter().for_each(|mut signals| _ = signals.read(&mut [0; 16]));
        if self.is_ending {
            return;
        }
        log::info!("the broker ends, as a signal asks");
        self.manager.stopping();
        self.is_ending = true;
        self.vms.iter_mut().for_each(|vm| vm.end_process(now + END_PATIENCE));
    }

    /// Has the loop woken when the next task is due.
    fn set_alarm(&mut self) -> io::Result<()> {
        let starts = self.vms.iter().filter_map(|vm| vm.start_at).filter(|_| !self.comes_to_rest());
        let looks = self.gpus.iter().filter_map(Gpu::next_look);
        let answers = self.requests.waiting.iter().map(|waiting| waiting.deadline);
        let kills = self.vms.iter().flat_map(|vm| [vm.kill_deadline(), vm.end_deadline()]).flatten();
        let others = [
            self.next_tick,
            self.connections.next_deadline(),
            self.groups.next_sweep(),
            self.next_told(),
            self.requests.traces.next_look(),
            self.next_restart(),
            self.next_room,
            self.next_upgrade(),
            self.next_renewal(),
        ];
        let others = others.into_iter().flatten();
        let at = starts.chain(looks).chain(answers).chain(kills).chain(others).min();
        self.alarm.set(at, || page_clock() + SOONEST)
    }
}

/// Has `epoll` report these signals under a source.
fn take_signals(signals: &[i32], epoll: &OwnedFd, source: Source) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, theirs.try_clone()?)?;
    }
    readiness::watch(epoll, &ours, source.token(0), Events::EPOLLIN)?;
    Ok(ours)
}
