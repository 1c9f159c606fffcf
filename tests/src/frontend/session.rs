//! A vhost-user session with the daemon, from negotiation to its end, in the order QEMU sends the messages.
//!
//! Knows nothing of virtio-gpu but the number of its queues and the size of its config space.

use super::halt_poll::HaltPoll;
use super::ram::GuestRam;
use super::virtqueue::{DriverQueue, RingFeatures};
use super::window::{HOST_VISIBLE, Window};
use anyhow::{Context, Result, ensure};
use parking_lot::{Condvar, Mutex};
use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures as ProtocolFeatures,
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

/// How the pretended VM is built.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Guest memory in bytes.
    pub ram_size: u64,
    /// Slots of the control queue.
    pub control_size: u16,
    /// Feature bits the driver would accept; what is used is what both sides have.
    pub features: u64,
    /// Whose habits it has.
    pub vmm: Vmm,
}

/// The two ways in which VMMs treat the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vmm {
    /// A mapping becomes a memory region of every vhost-user device before it is acknowledged; a guest's reset drops all
    /// of them, which the backend learns from the memory table at the next start.
    Qemu,
    /// The memory table is sent as a whole and mappings are not in it; a reset leaves them alone, so that the backend has to
    /// take them back.
    Crosvm,
}

impl Default for Options {
    fn default() -> Self {
        Self { ram_size: 64 << 20, control_size: 1024, features: u64::MAX, vmm: Vmm::Qemu }
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
    frontend: Frontend,
    features: u64,
    protocol_features: ProtocolFeatures,
    config: [u8; CONFIG_LEN],
    vmm: Vmm,
    closed: Arc<Closed>,
    threads: Vec<JoinHandle<()>>,
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

/// Whether the session is over, and a way to end it.
struct Closed {
    socket: UnixStream,
    stop: EventFd,
    over: Mutex<bool>,
    changed: Condvar,
}

impl Session {
    /// Connects to a listening daemon; waits for the socket to appear for at most 10 s.
    pub fn connect(path: &Path, options: Options) -> Result<Self> {
        let deadline = Instant::now() + Duration::from_secs(30);
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
        let socket = stream.try_clone().context("the session's socket")?;
        let mut frontend = Frontend::from_stream(stream, 2);
        frontend.set_owner()?;
        let offered = frontend.get_features().context("GET_FEATURES")?;
        ensure!(offered & PROTOCOL_FEATURES != 0, "the backend has no protocol features");
        let features = offered & options.features & !PROTOCOL_FEATURES;
        ensure!(features & 1 << VIRTIO_F_VERSION_1 != 0, "VIRTIO_F_VERSION_1 is not offered");
        let protocol_features = negotiate_protocol(&mut frontend, options.vmm)?;
        ensure!(frontend.get_queue_num()? == 2, "a virtio-gpu has two queues");
        let shmem = frontend.get_shmem_config().context("GET_SHMEM_CONFIG")?;
        let size = shmem.memory_sizes[usize::from(HOST_VISIBLE)];
        ensure!(shmem.nregions == 1 && size > 0, "{} regions, region 1 has {size} bytes", { shmem.nregions });
        let window = Arc::new(Window::new(size, (options.vmm == Vmm::Qemu).then(|| frontend.clone()))?);
        let mut channel = FrontendReqHandler::new(Arc::clone(&window))?;
        channel.set_reply_ack_flag(true);
        frontend.set_backend_request_fd(&channel.get_tx_raw_fd()).context("SET_BACKEND_REQ_FD")?;
        let (_, config) =
            frontend.get_config(0, CONFIG_LEN as u32, VhostUserConfigFlags::empty(), &[0; CONFIG_LEN])?;

        let ram = Arc::new(GuestRam::new(options.ram_size)?);
        let ring_features = RingFeatures {
            indirect: features & 1 << VIRTIO_RING_F_INDIRECT_DESC != 0,
            event_idx: features & 1 << VIRTIO_RING_F_EVENT_IDX != 0,
        };
        let control = Arc::new(DriverQueue::new(Arc::clone(&ram), options.control_size, ring_features)?);
        let cursor = Arc::new(DriverQueue::new(Arc::clone(&ram), 16, ring_features)?);
        let stop = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?;
        let closed = Arc::new(Closed { socket, stop, over: Mutex::new(false), changed: Condvar::new() });
        let mut session = Self {
            ram,
            control,
            cursor,
            window,
            frontend,
            features,
            protocol_features,
            config: config.try_into().ok().context("GET_CONFIG returned another length")?,
            vmm: options.vmm,
            closed,
            threads: Vec::new(),
        };
        session.spawn_threads(channel)?;
        session.frontend.set_features(features | PROTOCOL_FEATURES).context("SET_FEATURES")?;
        let regions = [session.ram.region()?];
        match options.vmm {
            Vmm::Qemu => session.frontend.add_mem_region(&regions[0]).map(|_| ()),
            Vmm::Crosvm => session.frontend.set_mem_table(&regions).map(|_| ()),
        }
        .context("announcing guest memory")?;
        session.start_rings(0, 0)?;
        Ok(session)
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

    /// Whether the daemon closed the session or broke the protocol.
    pub fn is_over(&self) -> bool {
        *self.closed.over.lock()
    }

    /// Blocks until the session is over, by whichever side, or the time is.
    pub fn wait_until_over(&self, timeout: Duration) -> bool {
        let mut over = self.closed.over.lock();
        self.closed.changed.wait_while_for(&mut over, |over| !*over, timeout);
        *over
    }

    /// A handle that ends the session.
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.closed))
    }

    /// What a VMM does when it pauses: the rings stop, everything else stays. Returns both ring positions.
    pub fn stop(&mut self) -> Result<[u16; 2]> {
        let mut bases = [0; 2];
        for (index, base) in bases.iter_mut().enumerate() {
            self.frontend.set_vring_enable(index, false)?;
            *base = u16::try_from(self.frontend.get_vring_base(index)?)?;
        }
        Ok(bases)
    }

    /// What a VMM does when it continues: the rings start where they stopped.
    pub fn cont(&mut self, [control, cursor]: [u16; 2]) -> Result<()> {
        self.frontend.set_features(self.features | PROTOCOL_FEATURES).context("SET_FEATURES")?;
        self.start_rings(control, cursor)
    }

    /// What a VMM does when the guest is reset. The backend is not told; what is left of the window depends on the VMM.
    pub fn reset(&mut self) -> Result<()> {
        self.stop()?;
        let dropped = if self.vmm == Vmm::Qemu { self.window.drop_all() } else { Vec::new() };
        self.control.reset()?;
        self.cursor.reset()?;
        self.frontend.set_features(self.features | PROTOCOL_FEATURES).context("SET_FEATURES")?;
        for region in dropped {
            self.frontend.remove_mem_region(&region).context("REM_MEM_REG")?;
        }
        self.start_rings(0, 0)
    }

    fn start_rings(&mut self, control_base: u16, cursor_base: u16) -> Result<()> {
        for (index, queue, base) in [(0, &self.control, control_base), (1, &self.cursor, cursor_base)] {
            let ring = queue.addresses();
            self.frontend.set_vring_num(index, queue.size()).context("SET_VRING_NUM")?;
            self.frontend.set_vring_base(index, base)?;
            let data = VringConfigData {
                queue_max_size: queue.size(),
                queue_size: queue.size(),
                flags: 0,
                desc_table_addr: self.ram.host_address(ring.descriptors)?,
                used_ring_addr: self.ram.host_address(ring.used)?,
                avail_ring_addr: self.ram.host_address(ring.avail)?,
                log_addr: None,
            };
            self.frontend.set_vring_addr(index, &data).context("SET_VRING_ADDR")?;
            self.frontend.set_vring_call(index, &queue.call)?;
            self.frontend.set_vring_kick(index, &queue.kick)?;
            self.frontend.set_vring_enable(index, true)?;
        }
        // As QEMU does: requests that were made available while the rings stood still are not forgotten.
        self.control.kick.write(1)?;
        Ok(())
    }

    fn spawn_threads(&mut self, channel: FrontendReqHandler<Window>) -> Result<()> {
        let closed = Arc::clone(&self.closed);
        let requests = Builder::new().name("backend-requests".into());
        self.threads.push(
            requests.spawn(move || closed.ends_with("backend channel", |c| serve_requests(c, channel)))?,
        );
        let closed = Arc::clone(&self.closed);
        let queues = [Arc::clone(&self.control), Arc::clone(&self.cursor)];
        let completions = Builder::new().name("completions".into());
        self.threads.push(completions.spawn(move || {
            closed.ends_with("completions", |c| reap_queues(c, &queues));
            queues.iter().for_each(|queue| queue.close());
        })?);
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.closed.finish();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Closed {
    /// Runs one of the session's threads; when it ends, the session does.
    fn ends_with(&self, what: &str, body: impl FnOnce(&Self) -> Result<()>) {
        if let Err(e) = body(self) {
            log::error!("{what}: {e:#}");
        }
        self.finish();
    }

    fn finish(&self) {
        *self.over.lock() = true;
        self.changed.notify_all();
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
        // An error comes again when it sleeps.
        halt_poll.wait(|| wait(0).is_ok() && ready.get() > 0, || wait(-1))?;
        for event in &events.borrow()[..ready.get()] {
            if event.data() == END {
                return Ok(());
            }
            handle(event.data())?;
        }
    }
}

fn serve_requests(closed: &Closed, mut channel: FrontendReqHandler<Window>) -> Result<()> {
    let epoll = closed.epoll()?;
    watch(&epoll, &channel, EventSet::IN, 0)?;
    for_each_event(&epoll, |_| match channel.handle_request() {
        // A refusal was answered; the backend decides what it means.
        Ok(_) | Err(vhost::vhost_user::Error::ReqHandlerError(_)) => Ok(()),
        Err(e) => Err(e.into()),
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

fn negotiate_protocol(frontend: &mut Frontend, vmm: Vmm) -> Result<ProtocolFeatures> {
    let wanted = ProtocolFeatures::MQ
        | ProtocolFeatures::REPLY_ACK
        | ProtocolFeatures::BACKEND_REQ
        | ProtocolFeatures::CONFIG
        | ProtocolFeatures::BACKEND_SEND_FD
        | ProtocolFeatures::CONFIGURE_MEM_SLOTS
        | ProtocolFeatures::SHMEM;
    let offered = frontend.get_protocol_features().context("GET_PROTOCOL_FEATURES")?;
    ensure!(
        offered.contains(wanted),
        "protocol features {offered:?}, of which {:?} are missing",
        wanted - offered
    );
    let taken = if vmm == Vmm::Qemu { wanted } else { wanted - ProtocolFeatures::CONFIGURE_MEM_SLOTS };
    frontend.set_protocol_features(taken).context("SET_PROTOCOL_FEATURES")?;
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    Ok(offered)
}
