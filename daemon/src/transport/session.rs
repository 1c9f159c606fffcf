//! One frontend, from its connection to its disconnection.

use super::CONTROLQ;
use super::error::SessionError;
use super::handler::Handler;
use super::requests::{Asked, Requests, VERSION, next_channel};
use super::shared::{DeviceConfig, Listening, Shared, Tokens};
use super::vring::Vring;
use protocol::virtio_gpu::HOST_VISIBLE_SHMID;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use shm::put_in_place_of;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use vhost::vhost_user::message::{BackendReq, FrontendReq, VhostUserMMap, VhostUserMMapFlags};
use vhost::vhost_user::{BackendReqHandler, Error};

/// A session, owned by the device thread. Dropping it closes the connection.
pub(crate) struct Session {
    shared: Arc<Shared>,
    connection: UnixStream,
    thread: Option<JoinHandle<()>>,
    /// The state of the message thread, while there is one.
    handler: Weak<Mutex<Handler>>,
    /// This process serves the frontend. Otherwise another one does, on the same connection.
    serves: bool,
}

impl Session {
    /// Serves the frontend at the other end of `connection`. Events go to `epoll` under `tokens`.
    pub(crate) fn start(
        connection: UnixStream,
        config: DeviceConfig,
        epoll: Arc<OwnedFd>,
        tokens: Tokens,
    ) -> Result<Self, SessionError> {
        let shared = Shared::new(config, epoll, tokens)?;
        let handler = Handler::new(Arc::clone(&shared));
        let messages = Messages::new(connection.try_clone()?, handler, Arc::clone(&shared))?;
        let mut session = Self::of(shared, connection, messages)?;
        session.serves = true;
        Ok(session)
    }

    /// A session with its message thread.
    fn of(shared: Arc<Shared>, connection: UnixStream, messages: Messages) -> io::Result<Self> {
        let handler = Arc::downgrade(&messages.handler);
        let thread = std::thread::Builder::new().name("frontend".into());
        let thread = Some(thread.spawn(move || handle_messages(messages))?);
        Ok(Self { shared, connection, thread, handler, serves: false })
    }

    /// A session whose frontend is not listened to until [`Self::go_on`] is called. All that can fail is done here.
    pub(super) fn resting(
        shared: Arc<Shared>,
        connection: UnixStream,
        messages: Messages,
    ) -> io::Result<Self> {
        shared.set_listening(Listening::Rests);
        // Before the thread is there, which would listen otherwise.
        shared.halt()?;
        Self::of(shared, connection, messages)
    }

    /// Returns the state of the message thread, which is to rest meanwhile.
    pub(super) fn handler(&self) -> Option<Arc<Mutex<Handler>>> {
        self.handler.upgrade()
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns the connection to the frontend.
    pub(crate) fn connection(&self) -> &UnixStream {
        &self.connection
    }

    /// Has the frontend not listened to any more as soon as it is between two messages, which [`Self::is_halted`] tells then.
    ///
    /// # Errors
    ///
    /// The system refuses it.
    pub(crate) fn halt(&self) -> io::Result<()> {
        self.shared.halt()
    }

    /// Returns whether the frontend is not listened to now.
    pub(crate) fn is_halted(&self) -> bool {
        *self.shared.listening.lock() == Listening::Rests
    }

    /// Calls a halt off, if it has not come yet.
    pub(crate) fn unhalt(&self) {
        let _ = rustix::io::read(&self.shared.halt, &mut [0; 8]);
    }

    /// Listens to the frontend again.
    pub(crate) fn go_on(&mut self) {
        self.unhalt();
        self.serves = true;
        self.shared.set_listening(Listening::Listens);
        self.shared.vrings.iter().for_each(|vring| vring.remind());
        // Requests may be there that no kick tells of any more.
        self.shared.ring_doorbell();
    }

    /// Leaves the connection to another process, which serves the frontend.
    pub(crate) fn give_away(mut self) {
        self.serves = false;
    }

    /// A queue.
    pub(crate) fn vring(&self, index: usize) -> &Arc<Vring> {
        &self.shared.vrings[index]
    }

    /// Resets the doorbell; to be called for each of its events.
    pub(crate) fn answer_doorbell(&self) {
        let _ = rustix::io::read(&self.shared.doorbell, &mut [0; 8]);
    }

    /// Returns why the session has ended, if it has. Asking again gets no answer.
    pub(crate) fn take_end(&self) -> Option<SessionError> {
        self.shared.ended.lock().take()
    }

    /// Returns whether the session has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.is_over.load(Ordering::Relaxed)
    }

    /// Returns whether the frontend has said anything at all; a mere look at the socket is no VM.
    pub(crate) fn was_used(&self) -> bool {
        self.shared.used.load(Ordering::Relaxed)
    }

    /// Returns whether the frontend drops mappings by itself when the driver resets the device.
    pub(crate) fn drops_maps_at_reset(&self) -> bool {
        self.shared.announces_maps.load(Ordering::Relaxed)
    }

    /// Returns whether the frontend announces each mapping as a region of guest memory.
    pub(crate) fn announces_maps(&self) -> bool {
        self.shared.announces_maps.load(Ordering::Relaxed)
    }

    /// The regions of guest memory that the frontend has announced, its other devices' mappings among them.
    pub(crate) fn regions(&self) -> usize {
        self.shared.regions.lock().len()
    }

    /// The number of regions that the frontend has announced which can be this part of the window. The window lies at a multiple of its size,
    /// as PCI wants it.
    ///
    /// A region does not say which device of the VM it belongs to, and no message says where a window lies: the guest may move it. So where a VM has two
    /// GPU devices, and both map or unmap the same offset and size at the same moment, the change of one is taken for that of the other, and the guest
    /// hears of its own some milliseconds early, or reaches what it unmapped for as long. Regions of other offsets tell one window from the other only until a guest has the same in both.
    pub(crate) fn announced(&self, offset: u64, size: u64) -> usize {
        let within = self.shared.config.window_size.next_power_of_two() - 1;
        let is_it = |region: &&(u64, u64)| (region.0 & within, region.1) == (offset, size);
        self.shared.regions.lock().iter().filter(is_it).count()
    }

    /// Something that can be read from when the memory table has changed after this call.
    pub(crate) fn table_change(&self) -> Arc<OwnedFd> {
        let _ = rustix::io::read(&self.shared.table_change, &mut [0; 8]);
        Arc::clone(&self.shared.table_change)
    }

    /// Returns whether the frontend says when something is mapped and unmapped.
    pub(crate) fn acknowledges(&self) -> bool {
        self.shared.acknowledges.load(Ordering::Relaxed)
    }

    /// Returns whether the control queue is stopped: what is mapped now survives a reset that is under way.
    pub(crate) fn is_stopped(&self) -> bool {
        !self.shared.vrings[CONTROLQ].is_started()
    }

    /// Asks the frontend to map the first `size` bytes of `file` at `offset` of the host-visible region, readable and writable.
    pub(crate) fn map_blob(&self, file: OwnedFd, offset: u64, size: u64) -> Result<Asked, SessionError> {
        let body = request(offset, size, VhostUserMMapFlags::WRITABLE);
        Ok(self.requests()?.ask(BackendReq::SHMEM_MAP, &body, Some(file)))
    }

    /// Asks the frontend to unmap exactly what [`Self::map_blob`] has mapped.
    pub(crate) fn unmap_blob(&self, offset: u64, size: u64) -> Result<Asked, SessionError> {
        let body = request(offset, size, VhostUserMMapFlags::empty());
        Ok(self.requests()?.ask(BackendReq::SHMEM_UNMAP, &body, None))
    }

    /// Ends the session: nothing is asked of the frontend any more, and [`Self::take_end`] has an end soon.
    pub(crate) fn close(&self) {
        *self.shared.requests.lock() = None;
        let _ = self.connection.shutdown(Shutdown::Both);
    }

    /// The channel to the frontend; the lock is not held while it is used.
    fn requests(&self) -> Result<Arc<Requests>, SessionError> {
        if self.has_ended() {
            return Err(SessionError::Gone);
        }
        self.shared.requests.lock().clone().ok_or(SessionError::NoWindow)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        match self.serves {
            true => _ = self.connection.shutdown(Shutdown::Both),
            // Another process answers what was taken.
            false => self.shared.vrings.iter().for_each(|vring| vring.abandon()),
        }
        self.shared.set_listening(Listening::Ends);
        if let Some(thread) = self.thread.take() {
            // A panic has ended the process already.
            let _ = thread.join();
        }
        let _ = readiness::unwatch(&self.shared.epoll, &self.shared.doorbell);
    }
}

fn request(offset: u64, size: u64, flags: VhostUserMMapFlags) -> VhostUserMMap {
    VhostUserMMap {
        shmid: HOST_VISIBLE_SHMID,
        padding: [0; 7],
        fd_offset: 0,
        shm_offset: offset,
        len: size,
        flags: flags.bits(),
    }
}

/// Handles what the frontend says, one message after another.
pub(super) struct Messages {
    connection: UnixStream,
    messages: BackendReqHandler<Mutex<Handler>>,
    handler: Arc<Mutex<Handler>>,
    shared: Arc<Shared>,
}

impl Messages {
    /// Handles those that come at `connection`.
    pub(super) fn new(connection: UnixStream, handler: Handler, shared: Arc<Shared>) -> io::Result<Self> {
        let handler = Arc::new(Mutex::new(handler));
        let messages = BackendReqHandler::from_stream(connection.try_clone()?, Arc::clone(&handler));
        Ok(Self { connection, messages, handler, shared })
    }

    /// Handles those that come at `connection` from now on, from a frontend that has negotiated these features and protocol features before. The
    /// library learns of them as from any frontend, so it hears a frontend of ours first.
    ///
    /// # Errors
    ///
    /// They are not ours, or the system refuses.
    pub(super) fn resume(
        connection: UnixStream,
        handler: Handler,
        shared: Arc<Shared>,
        (features, protocol_features): (u64, u64),
    ) -> Result<Self, Error> {
        let (ours, mut frontend) = UnixStream::pair().map_err(Error::SocketError)?;
        let mut messages = Self::new(ours, handler, shared).map_err(Error::SocketError)?;
        let said = [
            (FrontendReq::GET_FEATURES, None),
            (FrontendReq::SET_FEATURES, Some(features)),
            (FrontendReq::SET_PROTOCOL_FEATURES, Some(protocol_features)),
        ];
        for (request, value) in said {
            frontend.write_all(&message(request, value)).map_err(Error::SocketError)?;
            messages.handle_next()?;
        }
        put_in_place_of(messages.messages.as_raw_fd(), &connection).map_err(Error::SocketError)?;
        Ok(Self { connection, ..messages })
    }

    /// Returns the state of the message thread.
    pub(super) fn handler(&self) -> MutexGuard<'_, Handler> {
        // A panic has ended the process already.
        self.handler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next message; false if the thread is to rest ahead of it.
    fn comes(&self) -> bool {
        loop {
            let mut ready =
                [PollFd::new(&self.shared.halt, PollFlags::IN), PollFd::new(&self.connection, PollFlags::IN)];
            match poll(&mut ready, None) {
                Err(Errno::INTR) => {}
                // The next read returns the error.
                Err(_) => return true,
                Ok(_) => return ready[0].revents().is_empty(),
            }
        }
    }

    /// Waits for the next and does what it says.
    ///
    /// # Errors
    ///
    /// The session is over.
    pub(super) fn handle_next(&mut self) -> Result<(), Error> {
        *self.shared.arriving.lock() = next_channel(&self.connection);
        self.messages.handle_request()
    }
}

/// The message thread.
fn handle_messages(mut messages: Messages) {
    let shared = Arc::clone(&messages.shared);
    let error = loop {
        if !messages.comes() {
            match shared.rest() {
                true => continue,
                // What becomes of the connection is not this session's affair.
                false => return,
            }
        }
        if let Err(error) = messages.handle_next() {
            break error;
        }
        shared.used.store(true, Ordering::Relaxed);
    };
    // Unregisters the kicks before the device thread hears of the end.
    drop(messages);
    shared.end(error.into());
}

/// A frontend's message, with a value or without.
fn message(request: FrontendReq, value: Option<u64>) -> Vec<u8> {
    let size = if value.is_some() { size_of::<u64>() as u32 } else { 0 };
    let head = [request as u32, VERSION, size].into_iter().flat_map(u32::to_le_bytes);
    head.chain(value.into_iter().flat_map(u64::to_le_bytes)).collect()
}
