//! One frontend, from its connection to its disconnection.

use super::CONTROLQ;
use super::device_state::Transfer;
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
    /// The state of the message thread, while that thread runs.
    handler: Weak<Mutex<Handler>>,
    /// This process serves the frontend. Otherwise another process does, on the same connection.
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

    /// Makes a session with its message thread.
    fn of(shared: Arc<Shared>, connection: UnixStream, messages: Messages) -> io::Result<Self> {
        let handler = Arc::downgrade(&messages.handler);
        let thread = std::thread::Builder::new().name("frontend".into());
        let thread = Some(thread.spawn(move || handle_messages(messages))?);
        Ok(Self { shared, connection, thread, handler, serves: false })
    }

    /// Makes a session that does not listen to its frontend until [`Self::go_on`] is called. All steps that can fail are done here.
    pub(super) fn resting(
        shared: Arc<Shared>,
        connection: UnixStream,
        messages: Messages,
    ) -> io::Result<Self> {
        shared.set_listening(Listening::Rests);
        // This comes before the thread starts, which would otherwise listen.
        shared.halt()?;
        Self::of(shared, connection, messages)
    }

    /// Returns the state of the message thread, which has to rest while the caller uses it.
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

    /// Has the message thread stop listening as soon as the frontend is between two messages; [`Self::is_halted`] then returns true.
    ///
    /// # Errors
    ///
    /// The system refuses it.
    pub(crate) fn halt(&self) -> io::Result<()> {
        self.shared.halt()
    }

    /// Returns whether the message thread has stopped listening to the frontend.
    pub(crate) fn is_halted(&self) -> bool {
        *self.shared.listening.lock() == Listening::Rests
    }

    /// Calls a halt off, if the message thread has not stopped yet.
    pub(crate) fn unhalt(&self) {
        let _ = rustix::io::read(&self.shared.halt, &mut [0; 8]);
    }

    /// Listens to the frontend again.
    pub(crate) fn go_on(&mut self) {
        self.unhalt();
        self.serves = true;
        self.shared.set_listening(Listening::Listens);
        self.shared.vrings.iter().for_each(|vring| vring.remind());
        // Requests may wait whose kicks have been missed.
        self.shared.ring_doorbell();
    }

    /// Leaves the connection to another process, which serves the frontend.
    pub(crate) fn give_away(mut self) {
        self.serves = false;
    }

    /// Returns a queue.
    pub(crate) fn vring(&self, index: usize) -> &Arc<Vring> {
        &self.shared.vrings[index]
    }

    /// Resets the doorbell. The caller calls this for each event of the doorbell.
    pub(crate) fn answer_doorbell(&self) {
        let _ = rustix::io::read(&self.shared.doorbell, &mut [0; 8]);
    }

    /// Returns why the session has ended, if it has. A second call returns none.
    pub(crate) fn take_end(&self) -> Option<SessionError> {
        self.shared.ended.lock().take()
    }

    /// Returns whether the session has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.is_over.load(Ordering::Relaxed)
    }

    /// Returns whether the frontend has sent any message; a program that only connects serves no VM.
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

    /// Returns the number of regions of guest memory that the frontend has announced, mappings of its other devices among them.
    pub(crate) fn regions(&self) -> usize {
        self.shared.regions.lock().len()
    }

    /// Returns the number of announced regions that can be this part of the window. A window lies at a multiple of its size, as PCI demands.
    ///
    /// A region does not say to which device of the VM it belongs, and no message says where a window lies: the guest may move it. So if a VM has
    /// two GPU devices, and both map or unmap the same offset and size at the same moment, the change of one counts as that of the other. The guest
    /// then hears of its change some milliseconds early, or reaches unmapped memory for as long. Regions of other offsets tell the windows apart
    /// only until a guest has the same in both.
    pub(crate) fn announced(&self, offset: u64, size: u64) -> usize {
        let within = self.shared.config.window_size.next_power_of_two() - 1;
        let is_it = |region: &&(u64, u64)| (region.0 & within, region.1) == (offset, size);
        self.shared.regions.lock().iter().filter(is_it).count()
    }

    /// Returns an eventfd that is readable when the memory table has changed after this call.
    pub(crate) fn table_change(&self) -> Arc<OwnedFd> {
        let _ = rustix::io::read(&self.shared.table_change, &mut [0; 8]);
        Arc::clone(&self.shared.table_change)
    }

    /// Returns whether the frontend says when memory is mapped and unmapped.
    pub(crate) fn acknowledges(&self) -> bool {
        self.shared.acknowledges.load(Ordering::Relaxed)
    }

    /// Returns whether the control queue is stopped: memory that is mapped now stays mapped after a reset that is under way.
    pub(crate) fn is_stopped(&self) -> bool {
        !self.shared.vrings[CONTROLQ].is_started()
    }

    /// Asks the frontend to map the first `size` bytes of `file` at `offset` of the host-visible region, readable and writable.
    pub(crate) fn map_blob(&self, file: OwnedFd, offset: u64, size: u64) -> Result<Asked, SessionError> {
        let body = request(offset, size, VhostUserMMapFlags::WRITABLE);
        Ok(self.requests()?.ask(BackendReq::SHMEM_MAP, &body, Some(file)))
    }

    /// Asks the frontend to unmap exactly the range that [`Self::map_blob`] has mapped.
    pub(crate) fn unmap_blob(&self, offset: u64, size: u64) -> Result<Asked, SessionError> {
        let body = request(offset, size, VhostUserMMapFlags::empty());
        Ok(self.requests()?.ask(BackendReq::SHMEM_UNMAP, &body, None))
    }

    /// Forgets all requests that are not answered, as at a reset: a queue's generation rises.
    pub(crate) fn forget_requests(&self) {
        self.shared.vrings.iter().for_each(|vring| vring.abandon());
    }

    /// Takes the transfer of the device's state that the frontend wants, if it wants one. The caller calls [`Self::transfer_ends`].
    pub(crate) fn take_transfer(&self) -> Option<Transfer> {
        self.shared.transfers.take()
    }

    /// Tells the frontend, as soon as it asks, whether the transfer has worked.
    pub(crate) fn transfer_ends(&self, has_worked: bool) {
        self.shared.transfers.ends(has_worked);
    }

    /// Ends the session: sends no more requests to the frontend; [`Self::take_end`] soon returns an end.
    pub(crate) fn close(&self) {
        self.shared.transfers.close();
        *self.shared.requests.lock() = None;
        let _ = self.connection.shutdown(Shutdown::Both);
    }

    /// Returns the channel to the frontend; the lock is not held while the channel is used.
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
            // Another process answers the requests that were taken.
            false => self.shared.vrings.iter().for_each(|vring| vring.abandon()),
        }
        self.shared.set_listening(Listening::Ends);
        self.shared.transfers.close();
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

/// The frontend's messages and their handler, which handles one after another.
pub(super) struct Messages {
    connection: UnixStream,
    messages: BackendReqHandler<Mutex<Handler>>,
    handler: Arc<Mutex<Handler>>,
    shared: Arc<Shared>,
}

impl Messages {
    /// Makes a handler of the messages that arrive at `connection`.
    pub(super) fn new(connection: UnixStream, handler: Handler, shared: Arc<Shared>) -> io::Result<Self> {
        let handler = Arc::new(Mutex::new(handler));
        let messages = BackendReqHandler::from_stream(connection.try_clone()?, Arc::clone(&handler));
        Ok(Self { connection, messages, handler, shared })
    }

    /// Makes a handler of the messages that arrive at `connection` from now on, from a frontend that has negotiated these features and protocol
    /// features before. The library learns features only from a frontend's messages, so this function first plays a frontend that sends them.
    ///
    /// # Errors
    ///
    /// The device does not offer these features, or the system refuses.
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

    /// Waits for the next message. Returns false if the thread is to rest before that message.
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

    /// Waits for the next message, and carries it out.
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
                // Another process has the connection, so its end does not concern this session.
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

/// Returns the bytes of a frontend's message, with a value or without.
fn message(request: FrontendReq, value: Option<u64>) -> Vec<u8> {
    let size = if value.is_some() { size_of::<u64>() as u32 } else { 0 };
    let head = [request as u32, VERSION, size].into_iter().flat_map(u32::to_le_bytes);
    head.chain(value.into_iter().flat_map(u64::to_le_bytes)).collect()
}
