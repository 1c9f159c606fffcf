//! The device thread's loop.

use super::blobs::closer::Closer;
use super::blobs::closing::Closing;
use super::blobs::deposits::Deposits;
use super::blobs::lenders::Lenders;
use super::blobs::rings::Rings;
use super::blobs::{Blobs, Export, Taken};
use super::broker::Broker;
use super::checkpoints::Checkpoints;
use super::device_state::Transferring;
use super::effects::{Backlog, World};
use super::handover::HandOvers;
use super::handover::Purpose;
use super::handover::idle::Idle;
use super::handover::restless::Restless;
use super::handover::room::Room;
use super::hangs::Hangs;
use super::hangs::progress::Progress;
use super::hangs::strikes::Strikes;
use super::logging::event::{ContextEvent, DeviceEvent};
use super::logging::event_log::{Advised, EventLog};
use super::logging::fault;
use super::manager::Told;
use super::outdated::{End, Outdated};
use super::setup::{EndRequest, Listen, take_signals};
use super::succession::{Succession, serves};
use super::window::Window;
use super::workers::{
    CHANNEL_TOKEN, FromWorker, HANDS_OVER_TOKEN, OUTPUT_TOKEN, START_WAIT_MAX, Unexplained, Whose,
    WorkerOptions, Workers,
};
use crate::device::{Device, DeviceOptions, Effects, GuestError, MapsAtReset};
use crate::ipc::{
    self, Channel, DriverFamily, HeldMemory, InForce, ReceiveError, SharedGpu, ToBroker, ToDevice,
};
use crate::options::VmOptions;
use crate::sandbox::{Ended, FromChildren, Launcher, peer_process};
use crate::service::Manager;
use crate::transport::{
    CONTROLQ, DeviceConfig, NoRequest, PendingResponse, QUEUES, Session, SessionError, Tokens, Vring,
};
use config::{
    CacheKey, ContextLimits, DeviceLimits, GpuChoice, HangLimits, MemoryBackEnd, MemoryId, PLUG_AGAIN,
    PerHeap,
};
use outside::{HostMemory, Quoted, Span};
use protocol::ids::{ContextId, ResourceId};
use protocol::virtio_gpu::{Command, CommandLimits, Config, HEADER_BYTES, MapCache, Response, ResponseType};
use readiness::{self, Event, Events, Reported};
use shm::{device_node, guard_mappings, memory_was_lost};
use signal_hook::iterator::Signals;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waiting::attention::Attention;
use waiting::tunables;
use zerocopy::IntoBytes;

/// The options of a device process, which say how to serve.
#[derive(Debug)]
pub struct Options {
    /// The VM's options. Where an option leaves a choice open, another field has the choice.
    pub vm: VmOptions,
    /// The source of frontends.
    pub listen: Listen,
    /// Bytes of the host-visible region, a multiple of 4096.
    pub window_size: u64,
    /// End with the first frontend instead of waiting for the next.
    pub exit_on_disconnect: bool,
    /// The GPUs that guests see, at least one, followed by spare GPUs. The back end of mappable memory is the same for all.
    pub gpus: Vec<GpuChoice>,
    /// The number of GPUs that guests see.
    pub gpus_seen: usize,
    /// The Venus capability set.
    pub capset: Vec<u8>,
    /// Signals that were taken already ([`take_signals`]).
    pub signals: Option<Signals>,
    /// The launcher, which starts workers.
    pub launcher: Launcher,
    /// The driver of the GPU.
    pub family: DriverFamily,
    /// Bounds per VM.
    pub limits: DeviceLimits,
    /// Bounds on the time of submissions.
    pub hangs: HangLimits,
    /// Bounds per worker.
    pub context_limits: ContextLimits,
    /// The memory of the host, as this process sees it.
    pub host_memory: HostMemory,
    /// The key that pipeline caches are authenticated with ([`super::cache_key`]).
    pub cache_key: CacheKey,
    /// Contexts hold no memory of the GPUs before the broker has said how much.
    pub awaits_room: bool,
    /// The time for which a worker executes nothing before it writes a checkpoint; none if there are to be no checkpoints.
    pub checkpoint_after: Option<Duration>,
    /// The broker, which schedules the GPU, if there is one.
    pub broker: Option<Broker>,
    /// The service manager, if there is one.
    pub manager: Manager,
    /// The GPUs as the broker is told of them.
    pub shared_gpus: Vec<SharedGpu>,
}

const TOKEN_KICK: u64 = 0;
const TOKEN_DOORBELL: u64 = 1;
const TOKEN_LISTENER: u64 = 2;
const TOKEN_SIGNAL: u64 = 3;
pub(super) const TOKEN_LAUNCHER: u64 = 4;
const TOKEN_BROKER: u64 = 5;
pub(super) const TOKEN_STATE: u64 = 6;
pub(super) const TOKENS: Tokens = Tokens { kick: TOKEN_KICK, doorbell: TOKEN_DOORBELL };

/// Requests taken from a queue before other work gets its turn; the thread takes the rest before it sleeps.
const REQUESTS_PER_TURN: usize = 256;
/// The time after which no more requests are taken from a queue in this turn. A frontend may take time for each mapping while workers wait.
const TURN_MAX: Duration = Duration::from_millis(100);
/// Workers' questions that wait until the guest's requests are done, at most; with one more, all are answered at once.
const CATCHING_UP_MAX: usize = 1024;
/// The requests that all queues can hold. When so many are done after a question, all that the guest had sent before the question is done, even if
/// its other programs go on sending.
const REQUESTS_OF_QUEUES: usize = QUEUES << 15;
/// Time that another device process has to replace this one: less than the time for which the broker waits for the end of this one.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);
/// Time after which this process listens for the next frontend when it had to refuse one.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Serves frontends until a signal ends the process, the only frontend has gone, or another process would serve better.
pub fn serve(mut options: Options) -> io::Result<End> {
    let signals = options.signals.take().map_or_else(take_signals, Ok)?;
    let end_request = EndRequest::watch(signals)?;
    guard_mappings()?;
    let limit = options.vm.frontend_timeout;
    let mut server = Server::new(options, end_request)?;
    server.world.progress.watch(limit)?;
    let result = server.run();
    server.end();
    result
}

pub(super) struct Server {
    pub(super) epoll: Arc<OwnedFd>,
    pub(super) listen: Listen,
    pub(super) config: DeviceConfig,
    command_limits: CommandLimits,
    exit_on_disconnect: bool,
    /// The family of the drivers, whose files are watched.
    pub(super) family: DriverFamily,
    pub(super) device: Device<PendingResponse>,
    pub(super) world: World,
    pub(super) attention: Attention,
    /// Generations of the queues, as this thread saw them last.
    pub(super) generations: [u32; QUEUES],
    /// Queues whose drivers broke the rules: left alone until the driver kicks or the frontend changes a queue.
    pub(super) broken: [bool; QUEUES],
    /// Bytes of the request at hand.
    request: Vec<u8>,
    /// Contexts whose workers wait until the guest's requests are done, and the numbers of their questions.
    catching_up: Vec<(ContextId, u32)>,
    /// Requests that were done since the first of these workers asked.
    requests_since_asked: usize,
    /// The questions and accounts that wait for descriptors to be closed.
    pub(super) closing: Closing,
    /// The transfer of the device's state that is under way.
    pub(super) transferring: Transferring,
    done: bool,
    end_request: EndRequest,
    /// The socket to the device process that serves the frontend instead of this one.
    pub(super) given: Option<Channel>,
}

impl Server {
    pub(super) fn new(options: Options, end_request: EndRequest) -> io::Result<Self> {
        let epoll = Arc::new(readiness::instance()?);
        watch(&epoll, &end_request, TOKEN_SIGNAL)?;
        let limits = options.limits;
        let launcher = Arc::new(options.launcher);
        watch(&epoll, &*launcher, TOKEN_LAUNCHER)?;
        if let Some(broker) = &options.broker {
            watch(&epoll, broker, TOKEN_BROKER)?;
            let limits = HeldMemory { device: limits.device_memory, host: limits.host_memory };
            let in_force = InForce::new(&options.gpus[..options.gpus_seen], options.window_size);
            broker.tell(&ToBroker::Ready { gpus: options.shared_gpus, limits, in_force }, None);
        }
        let memory = options.gpus.first().map(|gpu| gpu.memory).ok_or(io::ErrorKind::InvalidInput)?;
        let lenders = Lenders::new(options.gpus.iter().map(|gpu| gpu.trial.driver_mapped));
        let worker_options = WorkerOptions {
            family: options.family,
            gpus: options.gpus,
            seen: options.gpus_seen,
            limits: options.context_limits.within(&limits),
            cache_key: options.cache_key,
            waiting_off: options.vm.waiting_without.clone(),
        };
        let workers = Workers::new(launcher, Arc::clone(&epoll), &limits, worker_options);
        let device = Device::new(DeviceOptions {
            num_scanouts: options.vm.scanouts,
            window_size: options.window_size,
            capset: options.capset,
            limits,
            context_limits: options.context_limits,
        });
        let place = options.listen.place();
        Ok(Self {
            epoll,
            listen: options.listen,
            config: DeviceConfig {
                space: Config::new(options.vm.scanouts, 1).as_bytes().to_vec(),
                window_size: options.window_size,
                lent_devices: lenders.devices().to_vec(),
            },
            command_limits: CommandLimits {
                backing_entries: limits.backing_entries,
                submit_bytes: limits.submit_bytes,
            },
            exit_on_disconnect: options.exit_on_disconnect,
            family: options.family,
            device,
            world: World {
                session: None,
                workers,
                blobs: Blobs::new(memory),
                lenders,
                closer: Closer::default(),
                rings: Rings::new(options.context_limits.rings),
                hangs: Hangs::new(options.hangs, Instant::now()),
                handovers: HandOvers::new(&options.hangs, options.vm.driver_timeout),
                host_memory: options.host_memory,
                backlog: Backlog::default(),
                restless: restless(&options.vm),
                idle: options.vm.swap_after.map(Idle::new),
                room: if options.awaits_room { Room::closed() } else { Room::default() },
                // Memory of another back end ends with its worker, so a checkpoint would be useless.
                checkpoints: Checkpoints::new(
                    options.checkpoint_after.filter(|_| memory == MemoryBackEnd::Memfd),
                ),
                deposits: Deposits::new(&limits),
                alive_at: None,
                strikes: Strikes::new(options.hangs),
                broker: options.broker,
                events: EventLog::default(),
                window: Window::default(),
                frontend_timeout: options.vm.frontend_timeout,
                progress: Progress::default(),
                told: Told::new(options.manager, place),
                outdated: Outdated::default(),
                succession: Succession::None,
                listen_at: None,
            },
            attention: Attention::new(tunables()),
            generations: [0; QUEUES],
            broken: [false; QUEUES],
            request: Vec::new(),
            catching_up: Vec::new(),
            requests_since_asked: 0,
            closing: Closing::default(),
            transferring: Transferring::default(),
            done: false,
            end_request,
            given: None,
        })
    }

    fn run(&mut self) -> io::Result<End> {
        self.await_frontend()?;
        if !self.is_successor() {
            self.world.workers.launcher().watch(self.family)?;
        }
        self.world.told.ready();
        self.world.turns(Instant::now());
        let mut events = Reported::default();
        while !self.done {
            self.world.progress.waits();
            self.wait(&mut events)?;
            self.world.progress.begins();
            for Event { events, data: token } in events.events().iter().copied() {
                self.dispatch(token, Events::from_bits_retain(events))?;
                if self.given.is_some() {
                    return Ok(End::Asked);
                }
            }
            self.run_queues();
            self.tell_caught_up_due();
            self.listen_due()?;
            let now = Instant::now();
            self.closing_due(now);
            self.world.kill_due(now);
            self.late_starts_due(now);
            self.world.turns(now);
            self.settle();
            self.hand_overs_due(now);
            self.transfer_due(now);
            self.world.order_keeper();
            self.world.signal();
            if memory_was_lost() {
                self.end_shrunk();
            }
            if let Some(end) = self.succession_due()? {
                return Ok(end);
            }
            if let Some(end) = self.world.should_end() {
                log::info!("this device process ends, so that a new one takes its place");
                return Ok(end);
            }
        }
        Ok(End::Asked)
    }

    /// Memory has disappeared while this process used it: all that this process has read since is wrong.
    fn end_shrunk(&self) {
        if let Some(session) = &self.world.session {
            log::error!(
                "the frontend has shrunk guest memory, or the host has no memory for a page of the guest or of a state that is loaded: the \
                 frontend's session ends"
            );
            session.close();
        }
    }

    pub(super) fn dispatch(&mut self, token: u64, flags: Events) -> io::Result<()> {
        match token {
            // All queues are run after the other events.
            TOKEN_KICK => self.broken = [false; QUEUES],
            TOKEN_DOORBELL => return self.doorbell(),
            TOKEN_LISTENER => return self.accept(),
            TOKEN_LAUNCHER => return self.workers_ended(),
            TOKEN_BROKER => self.obey_broker(),
            TOKEN_STATE => self.transfer_reports(),
            TOKEN_SIGNAL => {
                log::info!("this device process ends, as a signal asks");
                self.done = true;
            }
            worker => {
                let serial = worker as u32;
                if worker & OUTPUT_TOKEN != 0 {
                    self.world.workers.hear_output(serial);
                }
                let Some(whose) = self.world.workers.whose(serial) else { return Ok(()) };
                if worker & CHANNEL_TOKEN != 0 {
                    if flags.contains(Events::EPOLLOUT) {
                        self.world.workers.flush(whose);
                    }
                    self.receive_from(serial);
                }
                if worker & HANDS_OVER_TOKEN != 0
                    && let Whose::Successor(ctx_id) = whose
                {
                    self.worker_writes(ctx_id);
                }
            }
        }
        Ok(())
    }

    /// Waits for a frontend: the next one, or the one that is connected already.
    fn await_frontend(&mut self) -> io::Result<()> {
        match &mut self.listen {
            Listen::Socket { listener, .. } => watch(&self.epoll, &*listener, TOKEN_LISTENER),
            Listen::Connected(frontend) => {
                match frontend.take() {
                    Some(connection) => self.start_session(connection)?,
                    None => self.done = true,
                }
                Ok(())
            }
            Listen::Successor(_) => Ok(()),
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        let Listen::Socket { listener, .. } = &self.listen else { return Ok(()) };
        let accepted = listener.accept();
        // One VM at a time: the next frontend waits until this one is gone.
        readiness::unwatch(&self.epoll, listener)?;
        match accepted {
            Ok((connection, _)) => self.start_session(connection),
            Err(error) => {
                self.refuse_frontend(&error);
                Ok(())
            }
        }
    }

    /// Refuses a frontend, because the system lacks the descriptors or the thread that a session needs; other programs may have taken them all.
    /// That can change soon, so this process listens for the next frontend after a pause.
    fn refuse_frontend(&mut self, why: &dyn std::fmt::Display) {
        self.world.log(DeviceEvent::FrontendRefused(why));
        match &self.listen {
            Listen::Socket { .. } => self.world.listen_at = Some(Instant::now() + REFUSED_PAUSE),
            Listen::Connected(_) | Listen::Successor(_) => self.done = true,
        }
    }

    /// Listens again when the pause is over.
    fn listen_due(&mut self) -> io::Result<()> {
        match self.world.listen_at {
            Some(at) if at <= Instant::now() => {
                self.world.listen_at = None;
                self.await_frontend()
            }
            _ => Ok(()),
        }
    }

    pub(super) fn start_session(&mut self, connection: UnixStream) -> io::Result<()> {
        connection.set_nonblocking(false)?;
        self.tell_launcher_of(&connection)?;
        match Session::start(connection, self.config.clone(), Arc::clone(&self.epoll), TOKENS) {
            Ok(session) => self.world.session = Some(session),
            Err(error) => {
                self.refuse_frontend(&error);
                return Ok(());
            }
        }
        self.tell_frontend(true);
        self.generations = [0; QUEUES];
        self.world.log(DeviceEvent::FrontendConnected);
        Ok(())
    }

    /// Tells the launcher which process the frontend is: the launcher keeps lent memory while that process lives.
    pub(super) fn tell_launcher_of(&self, frontend: impl AsFd) -> io::Result<()> {
        if self.world.lenders.devices().is_empty() {
            return Ok(());
        }
        let process = peer_process(frontend.as_fd());
        if process.is_none() {
            log::debug!("the frontend's process is not known");
        }
        self.world.workers.launcher().frontend(process.as_ref())
    }

    /// A queue was started or stopped, the session has stopped listening to the frontend, or the session has ended.
    fn doorbell(&mut self) -> io::Result<()> {
        let Some(session) = &self.world.session else { return Ok(()) };
        session.answer_doorbell();
        if session.is_halted() && self.halted() {
            return Ok(());
        }
        let Some(session) = &self.world.session else { return Ok(()) };
        if let Some(end) = session.take_end() {
            return self.session_ended(&end);
        }
        let is_running = session.vring(CONTROLQ).is_started();
        self.transfer_wanted();
        if is_running {
            // This comes before the guest hears of answers to requests about this memory.
            self.world.map_loaded();
        }
        let Some(session) = &self.world.session else { return Ok(()) };
        for index in 0..QUEUES {
            session.vring(index).release_held();
        }
        self.device.limit_maps(session.announces_maps().then(|| session.regions()));
        self.broken = [false; QUEUES];
        Ok(())
    }

    fn session_ended(&mut self, end: &SessionError) -> io::Result<()> {
        let served = self.world.session.as_ref().is_some_and(Session::was_used);
        self.world.log(match end.is_disconnection() {
            true => DeviceEvent::FrontendDisconnected,
            false => DeviceEvent::SessionFailed(end),
        });
        self.end_session();
        if self.exit_on_disconnect && served {
            self.done = true;
            return Ok(());
        }
        self.await_frontend()
    }

    /// Frees everything that belongs to the frontend's VM.
    pub(super) fn end_session(&mut self) {
        self.transferring = Transferring::None;
        // The connection is closed first, so that nothing is sent to the frontend any more.
        if self.world.session.take().is_some() {
            self.tell_frontend(false);
        }
        self.world.window = Window::default();
        self.world.events.advised = Advised::default();
        self.device.reset(MapsAtReset::Forget, &mut self.world);
        self.world.lenders.frontend_gone();
        self.world.order_keeper();
    }

    pub(super) fn run_queues(&mut self) {
        if self.transferring.is_under_way() {
            return;
        }
        for index in 0..QUEUES {
            if let Some(session) = self.world.session.as_ref().filter(|_| !self.broken[index]) {
                let vring = Arc::clone(session.vring(index));
                self.run_queue(index, &vring);
                vring.signal();
            }
        }
    }

    /// Tells the waiting workers when the requests are done that the guest had sent before the workers asked.
    fn tell_caught_up_due(&mut self) {
        let are_done = self.requests_since_asked > REQUESTS_OF_QUEUES;
        if self.catching_up.is_empty() || !self.has_requests() || are_done {
            self.tell_caught_up();
        }
    }

    /// Returns whether no worker waits until the guest's requests are done.
    pub(super) fn is_caught_up(&self) -> bool {
        self.catching_up.is_empty()
    }

    fn tell_caught_up(&mut self) {
        self.requests_since_asked = 0;
        for (ctx_id, request) in std::mem::take(&mut self.catching_up) {
            self.world.tell_caught_up(ctx_id, request);
        }
    }

    fn run_queue(&mut self, index: usize, vring: &Arc<Vring>) {
        let limit = HEADER_BYTES + 8 + self.command_limits.submit_bytes as usize;
        let mut request = std::mem::take(&mut self.request);
        // This must be known before the look at the queue, which may report a reset.
        let can_unmap_owed = index == CONTROLQ && self.world.can_unmap_owed();
        let start = Instant::now();
        for _ in 0..REQUESTS_PER_TURN {
            if start.elapsed() > TURN_MAX {
                break;
            }
            let popped = vring.pop(self.generations[index], limit, &mut request);
            if can_unmap_owed && !matches!(popped, Err(NoRequest::Reset(_))) {
                self.world.unmap_owed();
            }
            match popped {
                Err(NoRequest::Empty) => break,
                Err(NoRequest::Broken) => {
                    self.world.log(DeviceEvent::BrokenQueue(index));
                    self.broken[index] = true;
                    break;
                }
                Err(NoRequest::Reset(generation)) => self.reset(index, generation),
                Ok(pending) => {
                    self.requests_since_asked += 1;
                    self.handle(&request, pending);
                }
            }
            if vring.is_crowded() {
                self.make_room();
            }
        }
        self.request = request;
    }

    fn handle(&mut self, request: &[u8], pending: PendingResponse) {
        self.world.progress.begins();
        // This comes before any number of a lost context can be used anew.
        self.settle();
        let Some(header) = pending.header() else {
            self.world.log(DeviceEvent::ShortRequest);
            return pending.respond(&Response::Err(ResponseType::ERR_UNSPEC));
        };
        self.attention.took(&header);
        match Command::decode(&header, request, &self.command_limits) {
            Ok(command) => {
                log::trace!(context = header.ctx_id; "context {}: {command}", header.ctx_id);
                self.device.handle(&header, &command, pending, &mut self.world);
                self.swap_in_awaited();
            }
            Err(error) => {
                self.device.refuse(&header, &GuestError::Command(error), pending, &mut self.world);
            }
        }
    }

    /// Kills the worker that owes most answers: open requests nearly fill the queue, so the guest could soon send no request that ends a context.
    fn make_room(&mut self) {
        if let Some((ctx_id, owed)) = self.device.owes_most() {
            let why = format!(
                "limit open_requests reached: its worker owes answers to {owed} requests, which leave hardly any room in the virtqueue for others"
            );
            self.world.kill(ctx_id, &why);
            self.settle();
        }
    }

    /// The driver has reset the device: everything begins anew, except for mappings that the frontend did not drop.
    fn reset(&mut self, index: usize, generation: u32) {
        self.generations[index] = generation;
        if index != CONTROLQ {
            return;
        }
        self.world.log(DeviceEvent::Reset);
        let dropped = self.world.session.as_ref().is_none_or(|s| s.drops_maps_at_reset() || s.has_ended());
        let maps = if dropped { MapsAtReset::Forget } else { MapsAtReset::Unmap };
        self.device.reset(maps, &mut self.world);
        if dropped {
            self.world.window_was_reset();
            if self.world.session.as_ref().is_some_and(|session| !session.has_ended()) {
                self.world.lenders.unmapped_all();
            }
        }
    }

    pub(super) fn hear_worker(&mut self, ctx_id: ContextId, received: FromWorker) {
        match received {
            // The worker's successor has the context, or the worker goes on as if it had sent nothing. But the worker gives back, once, what it
            // was granted at rest in answer to earlier requests.
            FromWorker::Message(message, fd)
                if self.world.workers.rests(ctx_id)
                    && !matches!(
                        message,
                        ToDevice::MemoryReturned { .. }
                            | ToDevice::CreditReturned { .. }
                            | ToDevice::TakesBack { .. }
                    ) =>
            {
                self.world.closer.close(fd);
            }
            FromWorker::Message(message, fd) => self.worker_says(ctx_id, message, fd),
            FromWorker::Gone(ReceiveError::Closed) => self.lose_unexplained(ctx_id),
            FromWorker::Gone(reason) => self.lose(ctx_id, &reason.to_string()),
        }
    }

    pub(super) fn hear_successor(&mut self, ctx_id: ContextId, received: FromWorker) {
        match received {
            FromWorker::Message(message, fd) => {
                self.world.closer.close(fd);
                self.successor_says(ctx_id, message);
            }
            FromWorker::Gone(_) => self.successor_gone(ctx_id),
        }
    }

    pub(super) fn worker_says(&mut self, ctx_id: ContextId, message: ToDevice, fd: Option<OwnedFd>) {
        match message {
            ToDevice::Ready => {
                log::debug!(context = ctx_id.0; "the worker of context {ctx_id} is ready");
                self.world.workers.has_started(ctx_id);
                self.device.worker_started(ctx_id, &mut self.world);
            }
            ToDevice::FenceSignalled(ipc::Fence { ring_idx, fence_id }) => {
                self.device.fence_signalled(ctx_id, ring_idx, fence_id, &mut self.world);
            }
            ToDevice::BlobExported { resource_id, map_info, memory } => {
                let cache = match map_info {
                    ipc::MapInfo::Cached => MapCache::Cached,
                    ipc::MapInfo::WriteCombined => MapCache::WriteCombined,
                };
                self.blob_exported(ctx_id, resource_id, cache, fd.map(|fd| (fd, memory)));
            }
            ToDevice::Anchor { left } => {
                if let Err(reason) = self.world.lenders.anchor(ctx_id, fd, left) {
                    self.lose(ctx_id, reason);
                }
                // This comes before any memory is mapped that the anchors keep alive.
                self.world.order_keeper();
            }
            ToDevice::BlobRefused { resource_id, reason } => {
                self.refuse_blob(ctx_id, resource_id, &reason);
            }
            ToDevice::RingBegins { ring, resource_id, status } => {
                self.world.rings.begins(ctx_id, ring, resource_id, status);
                if let Err(limit) = self.device.ring_begins(ctx_id) {
                    self.world.kill(ctx_id, &format!("limit {limit} reached"));
                    self.settle();
                }
            }
            ToDevice::RingEnds { ring } => {
                self.world.rings.ends(ctx_id, ring);
                self.device.ring_ends(ctx_id);
            }
            ToDevice::MemoryWanted { request, wanted } => {
                self.memory_wanted(ctx_id, request, wanted);
            }
            ToDevice::MemoryWantedNoMore { request } => {
                self.wanted_no_more(ctx_id, request);
            }
            ToDevice::BudgetWanted { request } => {
                self.device.budget_wanted(ctx_id, request, &mut self.world);
            }
            ToDevice::CatchUpWanted { request } => {
                self.catching_up.push((ctx_id, request));
                if self.catching_up.len() > CATCHING_UP_MAX {
                    self.tell_caught_up();
                }
            }
            ToDevice::ClosingWanted { request } => self.closing_wanted(ctx_id, request),
            ToDevice::MemoryReturned { memory } => {
                self.device.memory_returned(ctx_id, memory, &mut self.world);
            }
            ToDevice::CreditReturned { heap, bytes } => {
                self.device.credit_returned(ctx_id, heap, bytes, &mut self.world);
            }
            ToDevice::Deposits { id } => self.deposits(ctx_id, id, fd),
            ToDevice::TakesBack { id } => {
                let World { deposits, closer, .. } = &mut self.world;
                closer.close(deposits.take_back(ctx_id, id));
            }
            ToDevice::LimitReached { limit } => {
                self.world.log_of(ctx_id, ContextEvent::LimitReached(&limit));
            }
            ToDevice::ShaderRefused { reason } => {
                self.world.log_of(ctx_id, ContextEvent::ShaderRefused(&reason));
            }
            ToDevice::Undrawn => self.world.advise_on_queues(ctx_id),
            // A program that keeps to valid usage has no command refused for this reason.
            ToDevice::Overdue { command, is_blocked } => {
                self.world.log_of(ctx_id, ContextEvent::Overdue { command: &command, is_blocked });
            }
            ToDevice::HandedOver => self.worker_handed_over(ctx_id),
            ToDevice::Stays { reason, for_now } => self.worker_stays(ctx_id, &reason, for_now),
            ToDevice::Wakes => self.wakes(ctx_id),
            ToDevice::CheckpointWritten { bytes, took } => {
                self.checkpoint_answered(ctx_id, Ok((bytes, took)));
            }
            ToDevice::NoCheckpoint { reason, for_now } => {
                log::debug!(context = ctx_id.0; "context {ctx_id} has no checkpoint: {}", Quoted(&reason));
                self.checkpoint_answered(ctx_id, Err(for_now));
            }
            ToDevice::JournalFills => self.world.checkpoints.fills(ctx_id, Instant::now()),
            ToDevice::PreludeBuilt { .. } | ToDevice::TakesOver { .. } | ToDevice::TakenOver { .. } => {
                self.lose(ctx_id, "an answer without a request");
            }
            ToDevice::Lost { at_fault, reason } => self.lose(ctx_id, &fault::told(at_fault, Quoted(&reason))),
            ToDevice::Hung { limit } => {
                self.world.kill_hung(ctx_id, self.world.hangs.reached(limit));
                self.settle();
            }
        }
    }

    fn blob_exported(
        &mut self,
        ctx_id: ContextId,
        resource_id: ResourceId,
        cache: MapCache,
        file: Option<(OwnedFd, Option<MemoryId>)>,
    ) {
        let (file, memory) = file.map_or((None, None), |(file, memory)| (Some(file), memory));
        let lent = memory.filter(|_| file.as_ref().is_some_and(|file| device_node(file).is_some()));
        let taken = match self.device.pending_export(ctx_id, resource_id) {
            // A resource may be gone before the worker has answered.
            None => None,
            Some((size, mappable)) => {
                // A piece that the worker does not hold is not memory that the worker was given.
                let held = memory.filter(|memory| self.device.held_piece(ctx_id, *memory) >= Some(size));
                let export = Export { ctx_id, resource_id, size, mappable };
                let taken = self.world.blobs.accept(&export, file, held, &self.world.lenders);
                taken
                    .map(|taken| (taken, held))
                    .map_err(|error| self.refuse_blob(ctx_id, resource_id, &error.to_string()))
                    .ok()
            }
        };
        match (taken, lent) {
            (Some((taken, held)), _) => {
                let lent = taken == Taken::Lent;
                self.device.blob_exported(resource_id, cache, held, lent, &mut self.world);
            }
            // No process has this memory mapped, and none will map it.
            (None, Some(memory)) => self.world.blob_gone(ctx_id, memory),
            (None, None) => {}
        }
    }

    fn refuse_blob(&mut self, ctx_id: ContextId, resource_id: ResourceId, reason: &str) {
        if self.device.pending_export(ctx_id, resource_id).is_some() {
            self.world.log_of(ctx_id, ContextEvent::NotExported { resource_id, reason });
            self.device.blob_refused(resource_id, &mut self.world);
        }
    }

    fn workers_ended(&mut self) -> io::Result<()> {
        while let Some(heard) = self.world.workers.heard()? {
            let Ended { child, status, out_of_memory } = match heard {
                FromChildren::Ended(ended) => ended,
                FromChildren::Released(set) => {
                    self.world.closer.close(self.world.lenders.released(set));
                    continue;
                }
                FromChildren::Replaced(what) => {
                    self.world.replaced(what);
                    continue;
                }
            };
            // The worker's last messages may say why it ended.
            self.receive_from(child);
            match self.world.workers.whose(child) {
                Some(Whose::Worker(ctx_id)) => self.lose_unexplained(ctx_id),
                Some(Whose::Successor(ctx_id)) => self.successor_gone(ctx_id),
                None => {}
            }
            let Some((number, unexplained)) = self.world.workers.reap(child, status, out_of_memory) else {
                continue;
            };
            self.worker_has_ended(number);
            if let Some(Unexplained { ctx_id, name, how, is_successor }) = unexplained {
                let event = match is_successor {
                    false => ContextEvent::Lost(&how),
                    true => ContextEvent::SuccessorEnded(&how),
                };
                self.world.events.of_context(ctx_id, Some(&name), event);
            }
        }
        Ok(())
    }

    pub(super) fn tell_frontend(&self, connected: bool) {
        if let Some(broker) = &self.world.broker {
            broker.tell(&ToBroker::Frontend { connected }, None);
        }
    }

    /// Carries out the broker's messages. Without a broker that grants, this process ends.
    fn obey_broker(&mut self) {
        if let Err(error) = self.world.hear_broker() {
            log::error!("the broker is gone, so this device process ends: {error}");
            self.done = true;
        }
        self.settle();
    }

    fn report_memory(&self) {
        if let Some(broker) = &self.world.broker {
            let held = |PerHeap { device, host }| HeldMemory { device, host };
            let contexts = self.device.held_memory().into_iter();
            let contexts: Vec<_> = contexts.map(|(ctx_id, bytes)| (ctx_id, held(bytes))).collect();
            let unmovable =
                contexts.iter().filter_map(|(ctx_id, _)| Some((*ctx_id, self.unmovable(*ctx_id)?)));
            let unmovable = unmovable.collect();
            let vm = held(self.device.held_memory_of_all());
            let would_survive = |ctx_id: &ContextId| self.may_recover(*ctx_id).is_ok();
            let recoverable = contexts.iter().map(|(ctx_id, _)| *ctx_id).filter(would_survive).collect();
            broker.tell(&ToBroker::Memory { contexts, vm, unmovable, recoverable }, None);
        }
    }

    /// Tells the guest and the broker what this thread could not tell them while it waited for the frontend.
    pub(super) fn settle(&mut self) {
        while let Some(ctx_id) = self.world.backlog.lost.pop() {
            self.give_up(ctx_id);
        }
        if std::mem::take(&mut self.world.backlog.reports) {
            self.report_memory();
        }
    }

    /// Has guests go on whose workers have not started in time.
    fn late_starts_due(&mut self, now: Instant) {
        while let Some(ctx_id) = self.world.workers.late_start(now) {
            self.world.log_of(ctx_id, ContextEvent::StartsLate(START_WAIT_MAX));
            self.device.worker_started(ctx_id, &mut self.world);
        }
    }

    /// Returns whether another device process still serves the VM that this one is to serve: this one then owns nothing of the VM.
    fn is_successor(&self) -> bool {
        matches!(self.listen, Listen::Successor(_))
    }

    /// Leaves everything to the process that serves now; without one, ends the session and all workers, and waits until these have ended.
    pub(super) fn end(mut self) {
        match self.given.take() {
            Some(other) => {
                self.leave(&other);
                let Self { listen, world, .. } = self;
                drop(listen);
                world.workers.leave();
            }
            None => {
                if !self.is_successor() {
                    self.stop();
                }
                self.end_request.frontend_is_gone();
                self.world.progress.waits();
                let Self { listen, world, .. } = self;
                drop(listen);
                world.workers.end_all();
            }
        }
    }

    /// Ends the session of a frontend that no other process serves.
    fn stop(&mut self) {
        self.world.told.stopping();
        if self.world.restless.is_some() {
            let HandOvers { done, failed, .. } = self.world.handovers;
            log::info!("contexts were restarted {done} times; {failed} restarts failed");
        }
        if self.world.session.as_ref().is_some_and(|session| !session.has_ended()) {
            log::warn!("this process ends while a VM is connected: {PLUG_AGAIN}");
            self.device.revoke_all(&mut self.world);
        }
        self.end_session();
    }

    /// Leaves everything to the device process that serves now, and waits until that process has told the broker that it serves: otherwise the broker
    /// takes the end of this process for the end of all contexts.
    pub(super) fn leave(&mut self, other: &Channel) {
        self.world.progress.waits();
        self.end_request.frontend_is_gone();
        if !readiness::has_ended(other, LEAVES_WITHIN) {
            log::error!(
                "the next device process of the VM has not reported within {} that it serves the VM",
                Span(LEAVES_WITHIN)
            );
        }
        // If the other process has not said that it serves, the launcher keeps the anchors until the frontend ends, as if this process were killed.
        if serves(other) {
            self.world.lenders.leave();
            self.world.order_keeper();
        }
        if let Err(error) = self.world.workers.launcher().leave_at_end() {
            log::error!(
                "the launcher may remove the socket file, which belongs to another device process: {error}"
            );
        }
        self.world.session.take().into_iter().for_each(Session::give_away);
    }

    /// A context cannot go on.
    pub(super) fn lose(&mut self, ctx_id: ContextId, reason: &str) {
        if self.world.workers.is_running(ctx_id) {
            self.world.log_of(ctx_id, ContextEvent::Lost(&reason));
            self.world.tell_end(ctx_id, Some(reason.to_owned()), false);
            self.world.workers.end(ctx_id);
            self.give_up(ctx_id);
        }
    }

    /// A context's worker is gone for an unknown reason: tells the guest at once; the log line waits for the report of the process's end.
    pub(super) fn lose_unexplained(&mut self, ctx_id: ContextId) {
        if self.world.workers.is_gone(ctx_id) {
            return;
        }
        if self.world.workers.is_running(ctx_id) && !self.recovers(ctx_id) {
            self.world.tell_end(ctx_id, Some("its worker ended".into()), false);
            self.world.workers.end_unexplained(ctx_id);
            self.give_up(ctx_id);
        }
    }

    /// Tells the guest's kernel and driver that a context is lost.
    fn give_up(&mut self, ctx_id: ContextId) {
        // A worker that was killed could not tell the driver.
        let seen = |resource_id| self.device.sees(ctx_id, resource_id);
        self.world.rings.fail(ctx_id, &self.world.blobs, seen);
        // From now on the driver submits nothing more, so no fence is reset once it is answered.
        if let Some(page) = self.world.hangs.ends(ctx_id) {
            let shown = self.device.shown_memory(ctx_id);
            self.world.blobs.answer_fences(page.results(), |memory| shown.get(&memory).copied());
        }
        self.device.context_lost(ctx_id, &mut self.world);
        self.world.room.ends(ctx_id);
        // The frontend has unmapped the memory that the worker had lent.
        self.world.lenders.ends(ctx_id);
    }
}

/// Has contexts handed over again and again, if tests want that.
fn restless(vm: &VmOptions) -> Option<Restless> {
    let restarts = vm.restart_every.map(|mean| Restless::new(Purpose::Restart, mean));
    restarts.or(vm.swap_every.map(|mean| Restless::new(Purpose::SwapOut, mean)))
}

fn watch(epoll: &OwnedFd, fd: impl std::os::fd::AsFd, token: u64) -> io::Result<()> {
    readiness::watch(epoll, fd, token, Events::EPOLLIN)
}
