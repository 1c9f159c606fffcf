//! The broker of this device process: it is the process that starts the device processes and shares the GPUs among them, or a thread of this
//! process, which only counts.
//!
//! The broker is trusted. Operators and the scheduler use what these messages say of a context. The grants themselves go between the broker and
//! the worker, in a page that this module gives to both.

use super::workers::Gate;
use crate::ipc::{Channel, FromBroker, Placement, ReceiveError, SendError, ToBroker};
use config::Passage;
use protocol::ids::ContextId;
use shm::{Doorbell, grant_page};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The device process's end of its channel to the broker.
#[derive(Debug)]
pub struct Broker {
    channel: Channel,
    /// The broker is another process, which starts this one again when it ends.
    pub(super) is_parent: bool,
}

impl Broker {
    /// Takes over the inherited channel to the broker that has started this process.
    #[must_use]
    pub fn connect(socket: OwnedFd) -> Self {
        Self { channel: Channel::from_socket(socket), is_parent: true }
    }

    /// Takes over the channel to a broker that is a thread of this process.
    #[must_use]
    pub fn of_thread(socket: OwnedFd) -> Self {
        Self { is_parent: false, ..Self::connect(socket) }
    }

    /// Returns how submissions pass: a broker that is a thread of this process counts them and grants nothing.
    fn passage(&self) -> Passage {
        if self.is_parent { Passage::ByGrant } else { Passage::Counted }
    }

    /// Sends the broker a message. A broker that does not read would block the device thread; the broker is trusted to read.
    pub fn tell(&self, message: &ToBroker, fd: Option<BorrowedFd<'_>>) {
        match self.channel.send(message, fd) {
            Ok(()) => {}
            // The reader of the channel sees that the broker is gone.
            Err(SendError::Io(_)) => log::debug!("the broker is gone"),
            Err(error) => log::warn!("cannot send a message to the broker: {error}"),
        }
    }

    /// Tells the broker that a context begins on these GPUs. The broker gets one end of the context's grants and of a doorbell; the returned end is
    /// for the context's worker. No two workers share a doorbell, because a worker that was taken over could block it.
    ///
    /// # Errors
    ///
    /// No memory or no descriptor is left.
    pub(super) fn begins(
        &self,
        ctx_id: ContextId,
        debug_name: &str,
        placement: &Placement,
    ) -> io::Result<Gate> {
        let doorbell = OwnedFd::from(Doorbell::new()?);
        let debug_name = debug_name.to_owned();
        self.tell(&ToBroker::ContextBegins { ctx_id, debug_name }, Some(doorbell.as_fd()));
        let pages = placement.0.iter().map(|gpu| Ok((*gpu, self.comes(ctx_id, *gpu)?)));
        Ok(Gate { pages: pages.collect::<io::Result<_>>()?, doorbell, passage: self.passage() })
    }

    /// Tells the broker that a context begins to use a GPU too. Returns the worker's end of the context's grants there.
    ///
    /// # Errors
    ///
    /// No memory or no descriptor is left.
    pub(super) fn comes(&self, ctx_id: ContextId, gpu: u8) -> io::Result<OwnedFd> {
        let page = grant_page()?;
        self.tell(&ToBroker::ContextComes { ctx_id, gpu }, Some(page.as_fd()));
        Ok(page)
    }

    /// Tells the broker that a context is not on these GPUs any more.
    pub(super) fn leaves(&self, ctx_id: ContextId, gpus: &[u8]) {
        gpus.iter().for_each(|gpu| self.tell(&ToBroker::ContextLeaves { ctx_id, gpu: *gpu }, None));
    }

    /// Returns the broker's next message, if there is one. Its descriptor is missing if this process can have no more.
    ///
    /// # Errors
    ///
    /// The broker is gone.
    pub fn hear(&self) -> Result<Option<(FromBroker, Option<OwnedFd>)>, ReceiveError> {
        self.channel.try_receive_without()
    }
}

impl AsFd for Broker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
