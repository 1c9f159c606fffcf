//! A vhost-user session with the daemon, from negotiation to its end, as QEMU or crosvm conduct it: the same messages, in the same order.
//!
//! Knows nothing of virtio-gpu but the number of its queues and the size of its config space.

use super::halt_poll::HaltPoll;
use super::ram::GuestRam;
use super::virtqueue::{DriverQueue, RingFeatures};
use super::window::{HOST_VISIBLE, Window};
use anyhow::{Context, Result, ensure};
use parking_lot::{Condvar, Mutex};
use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{
    VhostTransferStateDirection as Direction, VhostTransferStatePhase as Phase, VhostUserConfigFlags,
    VhostUserHeaderFlag, VhostUserProtocolFeatures as ProtocolFeatures,
};
use vhost::vhost_user::{Frontend, FrontendReqHandler, VhostUserFrontend};
use vhost::{VhostBackend, VringConfigData};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// `VHOST_USER_F_PROTOCOL_FEATURES`.
const PROTOCOL_FEATURES: u64 = 1 << 30;
const CONFIG_LEN: usize = 16;

/// The properties of the pretended VM.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Guest memory in bytes.
    pub ram_size: u64,
    /// Slots of the control queue.
    pub control_size: u16,
    /// Feature bits that the driver accepts; those that the device also has are used.
    pub features: u64,
    /// The VMM that the frontend imitates.
    pub vmm: Vmm,
}

/// VMMs and their behaviour, as observed in the real programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vmm {
    /// QEMU waits for an answer to each message and sends SET_FEATURES at each start. A mapping becomes a memory region of every vhost-user
    /// device before it is acknowledged; a guest's reset drops all of them, which the backend learns from the memory table at the next
    /// start.
    Qemu,
    /// The VMM crosvm waits for answers to questions only, takes neither BACKEND_SEND_FD nor CONFIGURE_MEM_SLOTS nor indirect descriptors, and sends
    /// SET_FEATURES when the features change, and the memory table, as three regions, at each start. Mappings are not in that table, and a reset
    /// does not change them. The backend's requests wait from a stop to the end of the next start. A request that crosvm refuses ends the VM.
    Crosvm,
}

impl Default for Options {
    fn default() -> Self {
        Self { ram_size: 64 << 20, control_size: 1024, features: u64::MAX, vmm: Vmm::Qemu }
    }
}

impl Options {
    /// A VM as this VMM makes it by default.
    pub fn of(vmm: Vmm) -> Self {
        match vmm {
            Vmm::Qemu => Self::default(),
            Vmm::Crosvm => Self {
                control_size: 32768,
                features: !(1 << VIRTIO_RING_F_INDIRECT_DESC),
                vmm,
                ..Self::default()
            },
        }
    }
}

/// A running session: a device that a driver may use.
pub struct Session {
    /// Guest memory.
    pub ram: Arc<GuestRam>,
    /// Queue 0.
    pub control: Arc<DriverQueue>,
    /// Queue 1.
    pub cursor: Arc<DriverQueue>,
    /// Region 1.
    pub window: Arc<Window>,
    features: u64,
    protocol_features: ProtocolFeatures,
    config: [u8; CONFIG_LEN],
    vmm: Vmm,
    connection: Mutex<Connection>,
}

/// The connection to a daemon, and the threads that serve it.
struct Connection {
    frontend: Frontend,
    closed: Arc<Closed>,
    threads: Vec<JoinHandle<()>>,
}

/// The agreement with a daemon.
struct Negotiated {
    frontend: Frontend,
    closed: Arc<Closed>,
    features: u64,
    protocol_features: ProtocolFeatures,
    window_size: u64,
}

/// A device that was saved while its rings were stopped.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The bytes that the daemon wrote.
    pub state: Vec<u8>,
    /// The ring positions.
    pub bases: [u16; 2],
}

/// Ends a session from another thread.
#[derive(Clone)]
pub struct Closer(Arc<Closed>);

impl Closer {
    /// Ends the session: requests in flight complete without a response.
    pub fn close(&self) {
        self.0.finish();
    }
}

/// The state of the session, with the means to end it.
struct Closed {
    socket: UnixStream,
    stop: EventFd,
    over: Mutex<bool>,
    changed: Condvar,
    /// Requests of the backend are served.
    serving: Mutex<bool>,
    serves: Condvar,
    /// The queues go on with another daemon.
    is_left: AtomicBool,
}

/// Bytes of a page.
const PAGE: u64 = 4096;

impl Session {
    /// Connects to a listening daemon; waits for the socket to appear for at most 5 min.
    pub fn connect(path: &Path, options: Options) -> Result<Self> {
        let deadline = Instant::now() + Duration::from_secs(300);
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Self::start(stream, options),
                Err(e) if Instant::now() > deadline => {
                    return Err(e).with_context(|| format!("no daemon listens on {}", path.display()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Runs the whole negotiation on a connected socket and starts both queues.
    pub fn start(stream: UnixStream, options: Options) -> Result<Self> {
        let Negotiated { mut frontend, closed, features, protocol_features, window_size } =
            negotiate(stream, options.features, options.vmm)?;
        let window = Arc::new(Window::new(window_size, announces(&frontend, options.vmm))?);
        let channel = channel(&mut frontend, &window)?;
        let config = probe(&mut frontend, options.vmm)?;

        let ram = Arc::new(GuestRam::new(options.ram_size)?);
        let ring_features = RingFeatures {
            indirect: features & 1 << VIRTIO_RING_F_INDIRECT_DESC != 0,
            event_idx: features & 1 << VIRTIO_RING_F_EVENT_IDX != 0,
        };
        let control = Arc::new(DriverQueue::new(Arc::clone(&ram), options.control_size, ring_features)?);
        let cursor = Arc::new(DriverQueue::new(Arc::clone(&ram), 16, ring_features)?);
        let connection = Mutex::new(Connection { frontend, closed, threads: Vec::new() });
        let session = Self {
            ram,
            control,
            cursor,
            window,
            features,
            protocol_features,
            config,
            vmm: options.vmm,
            connection,
        };
        session.begin(channel, None)?;
        Ok(session)
    }

    /// Begins with a daemon: it loads the device, if that was saved, and the rings start.
    fn begin(&self, channel: FrontendReqHandler<Window>, saved: Option<&Saved>) -> Result<()> {
        self.spawn_threads(channel)?;
        let frontend = self.frontend();
        frontend.set_features(self.features | PROTOCOL_FEATURES).context("SET_FEATURES")?;
        saved.map_or(Ok(()), |saved| load(&frontend, &saved.state))?;
        self.announce_ram()?;
        let [control, cursor] = saved.map_or([0; 2], |saved| saved.bases);
        self.start_rings(control, cursor)
    }

    /// Has the daemon write the device down: the rings stop, and stay stopped until [`Self::cont`] or [`Self::go_on_with`].
    pub fn save(&self) -> Result<Saved> {
        let (bases, frontend) = (self.stop_rings()?, self.frontend());
        let (mut reads, writes) = io::pipe()?;
        let own = frontend.set_device_state_fd(Direction::SAVE, Phase::STOPPED, writes.into());
        ensure!(own.context("SET_DEVICE_STATE_FD")?.is_none(), "the backend has a descriptor of its own");
        let mut state = Vec::new();
        reads.read_to_end(&mut state)?;
        frontend.check_device_state().context("CHECK_DEVICE_STATE")?;
        Ok(Saved { state, bases })
    }

    /// Has the daemon load the device as it was saved, while the rings are stopped.
    ///
    /// # Errors
    /// The daemon does not load the device.
    pub fn load(&self, saved: &Saved) -> Result<()> {
        load(&self.frontend(), &saved.state)
    }

    /// Lets the daemon go on after [`Self::save`], whether it has worked or not.
    pub fn go_on(&self, [control, cursor]: [u16; 2]) -> Result<()> {
        if self.vmm == Vmm::Qemu {
            self.frontend().set_features(self.features | PROTOCOL_FEATURES).context("SET_FEATURES")?;
        }
        self.start_rings(control, cursor)
    }

    /// The positions of stopped rings.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn positions(&self) -> Result<[u16; 2]> {
        self.stop_rings()
    }

    /// Leaves the daemon, and goes on with another one at this socket, which loads the device as it was saved. The driver's queues stay as they are,
    /// as a VMM restores them with the guest's memory.
    pub fn go_on_with(&self, stream: UnixStream, saved: &Saved) -> Result<()> {
        let Negotiated { mut frontend, closed, features, protocol_features, window_size } =
            negotiate(stream, self.features, self.vmm)?;
        ensure!(
            (features, protocol_features, window_size)
                == (self.features, self.protocol_features, self.window.size()),
            "the other daemon has another device"
        );
        self.leave();
        self.window.begin_anew(announces(&frontend, self.vmm));
        let channel = channel(&mut frontend, &self.window)?;
        *self.connection.lock() = Connection { frontend, closed, threads: Vec::new() };
        self.begin(channel, Some(saved))
    }

    /// Makes a copy of the VM as it is now, which goes on with the daemon at this socket from what was saved. No request may be open.
    ///
    /// # Errors
    /// The daemon does not load the device, or the copy cannot be made.
    pub fn fork(&self, stream: UnixStream, saved: &Saved) -> Result<Self> {
        let Negotiated { mut frontend, closed, features, protocol_features, window_size } =
            negotiate(stream, self.features, self.vmm)?;
        let ram = Arc::new(self.ram.copy()?);
        let [control, cursor] = [&self.control, &self.cursor].map(|queue| queue.copy(&ram).map(Arc::new));
        let window = Arc::new(Window::new(window_size, announces(&frontend, self.vmm))?);
        let channel = channel(&mut frontend, &window)?;
        let connection = Mutex::new(Connection { frontend, closed, threads: Vec::new() });
        let (config, vmm) = (self.config, self.vmm);
        let fork = Self {
            ram,
            control: control?,
            cursor: cursor?,
            window,
            features,
            protocol_features,
            config,
            vmm,
            connection,
        };
        fork.begin(channel, Some(saved))?;
        Ok(fork)
    }

    /// Ends the connection, and leaves the queues to the next.
    fn leave(&self) {
        let (closed, threads) = {
            let mut connection = self.connection.lock();
            (Arc::clone(&connection.closed), std::mem::take(&mut connection.threads))
        };
        closed.is_left.store(true, Ordering::SeqCst);
        closed.finish();
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn frontend(&self) -> Frontend {
        self.connection.lock().frontend.clone()
    }

    fn closed(&self) -> Arc<Closed> {
        Arc::clone(&self.connection.lock().closed)
    }

    fn announce_ram(&self) -> Result<()> {
        match self.vmm {
            Vmm::Qemu => self.frontend().add_mem_region(&self.ram.region()?).map(drop).context("ADD_MEM_REG"),
            Vmm::Crosvm => Ok(()),
        }
    }

    /// Negotiated virtio feature bits.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Protocol features the backend offered and the frontend took.
    pub fn protocol_features(&self) -> ProtocolFeatures {
        self.protocol_features
    }

    /// `num_capsets` and the other fields of the config space, as bytes.
    pub fn config(&self) -> [u8; CONFIG_LEN] {
        self.config
    }

    /// Returns whether the daemon closed the session or broke the protocol.
    pub fn is_over(&self) -> bool {
        *self.closed().over.lock()
    }

    /// Blocks until either side has ended the session, or the time is over.
    pub fn wait_until_over(&self, timeout: Duration) -> bool {
        let closed = self.closed();
        let mut over = closed.over.lock();
        closed.changed.wait_while_for(&mut over, |over| !*over, timeout);
        *over
    }

    /// A handle that ends the session.
    pub fn closer(&self) -> Closer {
        Closer(self.closed())
    }

    /// Pauses as a VMM does: the rings stop, all other state stays. Returns both ring positions.
    pub fn stop(&mut self) -> Result<[u16; 2]> {
        self.stop_rings()
    }

    fn stop_rings(&self) -> Result<[u16; 2]> {
        let (mut bases, mut frontend) = ([0; 2], self.frontend());
        for (index, base) in bases.iter_mut().enumerate() {
            frontend.set_vring_enable(index, false)?;
            *base = u16::try_from(frontend.get_vring_base(index)?)?;
        }
        if self.vmm == Vmm::Crosvm {
            *self.closed().serving.lock() = false;
        }
        Ok(bases)
    }

    /// Continues as a VMM does: the rings start where they stopped.
    pub fn cont(&mut self, bases: [u16; 2]) -> Result<()> {
        self.go_on(bases)
    }

    /// Resets the guest, whose driver then probes the device again, as a VMM does. The backend gets no message; the VMM decides which mappings remain
    /// in the window.
    pub fn reset(&mut self) -> Result<()> {
        self.stop()?;
        let dropped = if self.vmm == Vmm::Qemu { self.window.drop_all() } else { Vec::new() };
        self.control.reset()?;
        self.cursor.reset()?;
        let mut frontend = self.frontend();
        probe(&mut frontend, self.vmm)?;
        if self.vmm == Vmm::Qemu {
            frontend.set_features(self.features | PROTOCOL_FEATURES).context("SET_FEATURES")?;
        }
        for region in dropped {
            frontend.remove_mem_region(&region).context("REM_MEM_REG")?;
        }
        self.start_rings(0, 0)
    }

    /// Has the backend signal the control queue's used buffers here.
    pub fn set_call(&mut self, call: &EventFd) -> Result<()> {
        self.frontend().set_vring_call(0, call).context("SET_VRING_CALL")
    }

    /// Plugs `pages` pages of memory into the guest, one after the other, behind its present memory.
    pub fn plug(&mut self, pages: u64) -> Result<()> {
        let mut region = self.ram.region()?;
        let behind = region.memory_size.next_multiple_of(PAGE);
        region.guest_phys_addr += behind;
        // The frontend's own addresses after its memory are not mapped, and need not be: these pages have no vring.
        region.userspace_addr += behind;
        region.memory_size = PAGE;
        for page in 0..pages {
            self.frontend().add_mem_region(&region).with_context(|| format!("ADD_MEM_REG of page {page}"))?;
            region.guest_phys_addr += PAGE;
            region.userspace_addr += PAGE;
        }
        Ok(())
    }

    fn start_rings(&self, control_base: u16, cursor_base: u16) -> Result<()> {
        let mut frontend = self.frontend();
        self.window.count_ahead()?;
        if self.vmm == Vmm::Crosvm {
            frontend.set_mem_table(&self.ram.regions(3)?).context("SET_MEM_TABLE")?;
        }
        for (index, queue, base) in [(0, &self.control, control_base), (1, &self.cursor, cursor_base)] {
            let ring = queue.addresses();
            frontend.set_vring_num(index, queue.size()).context("SET_VRING_NUM")?;
            let data = VringConfigData {
                queue_max_size: queue.size(),
                queue_size: queue.size(),
                flags: 0,
                desc_table_addr: self.ram.host_address(ring.descriptors)?,
                used_ring_addr: self.ram.host_address(ring.used)?,
                avail_ring_addr: self.ram.host_address(ring.avail)?,
                log_addr: None,
            };
            match self.vmm {
                Vmm::Qemu => {
                    frontend.set_vring_base(index, base)?;
                    frontend.set_vring_addr(index, &data).context("SET_VRING_ADDR")?;
                }
                Vmm::Crosvm => {
                    frontend.set_vring_addr(index, &data).context("SET_VRING_ADDR")?;
                    frontend.set_vring_base(index, base)?;
                }
            }
            frontend.set_vring_call(index, &queue.call)?;
            frontend.set_vring_kick(index, &queue.kick)?;
            frontend.set_vring_enable(index, true)?;
        }
        match self.vmm {
            // This kick announces the requests that the driver made available while the rings were stopped.
            Vmm::Qemu => self.control.kick.write(1)?,
            Vmm::Crosvm => {
                let closed = self.closed();
                *closed.serving.lock() = true;
                closed.serves.notify_all();
            }
        }
        Ok(())
    }

    fn spawn_threads(&self, channel: FrontendReqHandler<Window>) -> Result<()> {
        let (closed, threads) = (self.closed(), &mut self.connection.lock().threads);
        let (requests, vmm) = (Builder::new().name("backend-requests".into()), self.vmm);
        let (window, of_requests) = (Arc::clone(&self.window), Arc::clone(&closed));
        threads.push(requests.spawn(move || {
            of_requests.ends_with("backend channel", |closed| serve_requests(closed, channel, &window, vmm));
        })?);
        let queues = [Arc::clone(&self.control), Arc::clone(&self.cursor)];
        let completions = Builder::new().name("completions".into());
        threads.push(completions.spawn(move || {
            closed.ends_with("completions", |c| reap_queues(c, &queues));
            if !closed.is_left.load(Ordering::SeqCst) {
                queues.iter().for_each(|queue| queue.close());
            }
        })?);
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let connection = self.connection.get_mut();
        connection.closed.finish();
        for thread in connection.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Closed {
    fn of(socket: UnixStream, vmm: Vmm) -> Result<Self> {
        Ok(Self {
            socket,
            stop: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?,
            over: Mutex::new(false),
            changed: Condvar::new(),
            serving: Mutex::new(vmm == Vmm::Qemu),
            serves: Condvar::new(),
            is_left: AtomicBool::new(false),
        })
    }

    /// Runs one of the session's threads; the session ends with the thread.
    fn ends_with(&self, what: &str, body: impl FnOnce(&Self) -> Result<()>) {
        if let Err(e) = body(self) {
            log::error!("{what}: {e:#}");
        }
        self.finish();
    }

    fn finish(&self) {
        *self.over.lock() = true;
        self.changed.notify_all();
        self.serves.notify_all();
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = self.stop.write(1);
    }

    /// An epoll instance that also reports the session's end, as [`END`].
    fn epoll(&self) -> Result<Epoll> {
        let epoll = Epoll::new()?;
        watch(&epoll, &self.socket, EventSet::READ_HANG_UP, END)?;
        watch(&epoll, &self.stop, EventSet::IN, END)?;
        Ok(epoll)
    }
}

/// Time after which a thread that waits for a start looks whether the session is over.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Token of the session's end.
const END: u64 = u64::MAX;

fn watch(epoll: &Epoll, fd: &impl AsRawFd, events: EventSet, token: u64) -> Result<()> {
    Ok(epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), EpollEvent::new(events, token))?)
}

/// Calls `handle` with each token that becomes ready, until the session ends.
fn for_each_event(epoll: &Epoll, mut handle: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let (mut halt_poll, events, ready) =
        (HaltPoll::default(), RefCell::new([EpollEvent::default(); 4]), Cell::new(0));
    let wait = |timeout| match epoll.wait(timeout, &mut *events.borrow_mut()) {
        Ok(count) => {
            ready.set(count);
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
        Err(e) => Err(e),
    };
    loop {
        ready.set(0);
        // If the poll fails, the wait that follows returns the error.
        halt_poll.wait(|| wait(0).is_ok() && ready.get() > 0, || wait(-1))?;
        for event in &events.borrow()[..ready.get()] {
            if event.data() == END {
                return Ok(());
            }
            handle(event.data())?;
        }
    }
}

fn serve_requests(
    closed: &Closed,
    mut channel: FrontendReqHandler<Window>,
    window: &Window,
    vmm: Vmm,
) -> Result<()> {
    let epoll = closed.epoll()?;
    watch(&epoll, &channel, EventSet::IN, 0)?;
    for_each_event(&epoll, |_| {
        let mut serving = closed.serving.lock();
        while !*serving && !*closed.over.lock() {
            closed.serves.wait_for(&mut serving, LOOK_AGAIN);
        }
        // QEMU sends its own messages meanwhile; crosvm waits until the request is done.
        let serving = (vmm == Vmm::Crosvm).then_some(serving);
        let handled = channel.handle_request();
        window.announce();
        drop(serving);
        match handled {
            // The frontend has answered with a refusal; the backend decides how to go on.
            Err(vhost::vhost_user::Error::ReqHandlerError(_)) if vmm == Vmm::Qemu => Ok(()),
            handled => Ok(handled.map(drop)?),
        }
    })
}

fn reap_queues(closed: &Closed, queues: &[Arc<DriverQueue>; 2]) -> Result<()> {
    let epoll = closed.epoll()?;
    for (queue, token) in queues.iter().zip(0..) {
        // Edge triggered: the counter is never read, so a completion costs one system call here.
        watch(&epoll, &queue.call, EventSet::IN | EventSet::EDGE_TRIGGERED, token)?;
    }
    for_each_event(&epoll, |token| queues[usize::from(token != 0)].answer_call())
}

/// Has a daemon load a device that was saved, in a session that then ends. The queues are never started.
///
/// # Errors
/// There is no daemon, or it does not load the device.
pub fn load_only(path: &Path, vmm: Vmm, state: &[u8]) -> Result<()> {
    let negotiated = negotiate(UnixStream::connect(path)?, u64::MAX, vmm)?;
    let features = negotiated.features | PROTOCOL_FEATURES;
    negotiated.frontend.set_features(features).context("SET_FEATURES")?;
    load(&negotiated.frontend, state)
}

fn load(frontend: &Frontend, state: &[u8]) -> Result<()> {
    let (reads, mut writes) = io::pipe()?;
    let own = frontend.set_device_state_fd(Direction::LOAD, Phase::STOPPED, reads.into());
    ensure!(own.context("SET_DEVICE_STATE_FD")?.is_none(), "the backend has a descriptor of its own");
    std::thread::scope(|scope| {
        // A daemon that finds a fault reads no further.
        scope.spawn(move || drop(writes.write_all(state)));
        frontend.check_device_state().context("CHECK_DEVICE_STATE")
    })
}

fn negotiate(stream: UnixStream, features: u64, vmm: Vmm) -> Result<Negotiated> {
    let closed = Arc::new(Closed::of(stream.try_clone().context("the session's socket")?, vmm)?);
    let mut frontend = Frontend::from_stream(stream, 2);
    frontend.set_owner()?;
    let offered = frontend.get_features().context("GET_FEATURES")?;
    ensure!(offered & PROTOCOL_FEATURES != 0, "the backend has no protocol features");
    let features = offered & features & !PROTOCOL_FEATURES;
    ensure!(features & 1 << VIRTIO_F_VERSION_1 != 0, "VIRTIO_F_VERSION_1 is not offered");
    let protocol_features = negotiate_protocol(&mut frontend, vmm)?;
    ensure!(frontend.get_queue_num()? == 2, "a virtio-gpu has two queues");
    let shmem = frontend.get_shmem_config().context("GET_SHMEM_CONFIG")?;
    let window_size = shmem.memory_sizes[usize::from(HOST_VISIBLE)];
    ensure!(shmem.nregions == 1 && window_size > 0, "{} regions, region 1 has {window_size} bytes", {
        shmem.nregions
    });
    Ok(Negotiated { frontend, closed, features, protocol_features, window_size })
}

/// The frontend that announces each mapping, if this VMM does that.
fn announces(frontend: &Frontend, vmm: Vmm) -> Option<Frontend> {
    (vmm == Vmm::Qemu).then(|| frontend.clone())
}

/// The channel on which the backend has its requests served.
fn channel(frontend: &mut Frontend, window: &Arc<Window>) -> Result<FrontendReqHandler<Window>> {
    let mut channel = FrontendReqHandler::new(Arc::clone(window))?;
    channel.set_reply_ack_flag(true);
    window.hears(&channel)?;
    frontend.set_backend_request_fd(&channel.get_tx_raw_fd()).context("SET_BACKEND_REQ_FD")?;
    Ok(channel)
}

fn negotiate_protocol(frontend: &mut Frontend, vmm: Vmm) -> Result<ProtocolFeatures> {
    let wanted = ProtocolFeatures::MQ
        | ProtocolFeatures::REPLY_ACK
        | ProtocolFeatures::BACKEND_REQ
        | ProtocolFeatures::CONFIG
        | ProtocolFeatures::BACKEND_SEND_FD
        | ProtocolFeatures::CONFIGURE_MEM_SLOTS
        | ProtocolFeatures::DEVICE_STATE
        | ProtocolFeatures::SHMEM;
    let offered = frontend.get_protocol_features().context("GET_PROTOCOL_FEATURES")?;
    ensure!(
        offered.contains(wanted),
        "protocol features {offered:?}, of which {:?} are missing",
        wanted - offered
    );
    let taken = match vmm {
        Vmm::Qemu => wanted,
        Vmm::Crosvm => wanted - (ProtocolFeatures::BACKEND_SEND_FD | ProtocolFeatures::CONFIGURE_MEM_SLOTS),
    };
    frontend.set_protocol_features(taken).context("SET_PROTOCOL_FEATURES")?;
    if vmm == Vmm::Qemu {
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    }
    Ok(offered)
}

/// Reads two fields of the config space, as the driver does. QEMU asks for all of it each time.
fn probe(frontend: &mut Frontend, vmm: Vmm) -> Result<[u8; CONFIG_LEN]> {
    let mut config = [0; CONFIG_LEN];
    for at in [8, 12] {
        let (range, flags) = match vmm {
            Vmm::Qemu => (0..CONFIG_LEN, VhostUserConfigFlags::empty()),
            Vmm::Crosvm => (at..at + 4, VhostUserConfigFlags::WRITABLE),
        };
        let (offset, size) = (u32::try_from(range.start)?, u32::try_from(range.len())?);
        let (_, read) = frontend.get_config(offset, size, flags, &config[range.clone()])?;
        ensure!(read.len() == range.len(), "GET_CONFIG returned another length");
        config[range].copy_from_slice(&read);
    }
    Ok(config)
}
