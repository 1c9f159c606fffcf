//! The broker of this device process: it starts us beside others and schedules the GPU for all, or it is a thread of this process, which only
//! counts.
//!
//! The broker is trusted. What it is told of a context is for operators and the scheduler; the grants themselves go between the broker and
//! the worker, in a page that both are given here.

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
    /// Takes over the inherited channel to the process that has started this one.
    #[must_use]
    pub fn connect(socket: OwnedFd) -> Self {
        Self { channel: Channel::from_socket(socket), is_parent: true }
    }

    /// Takes over the channel to a thread of this process.
    #[must_use]
    pub fn of_thread(socket: OwnedFd) -> Self {
        Self { is_parent: false, ..Self::connect(socket) }
    }

    /// Returns how submissions pass: a thread of this process shares nothing out.
    fn passage(&self) -> Passage {
        if self.is_parent { Passage::ByGrant } else { Passage::Counted }
    }

    /// Sends the broker a message. A broker that does not read holds us up, which it is trusted not to do.
    pub fn tell(&self, message: &ToBroker, fd: Option<BorrowedFd<'_>>) {
        match self.channel.send(message, fd) {
            Ok(()) => {}
            // The reader of the channel sees it.
            Err(SendError::Io(_)) => log::debug!("the broker is gone"),
            Err(error) => log::warn!("cannot send a message to the broker: {error}"),
        }
    }

    /// Tells the broker that a context begins on these GPUs. The broker gets one end of its grants and of a doorbell, and the context's
    /// worker what is answered here. No worker has another's doorbell, which one that was taken over could block.
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

    /// Tells the broker that a context comes to a GPU. Returns the worker's end of its grants.
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

    /// Returns what the broker says next, if it does. A descriptor is missing if this process can have no more.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub fn hear(&self) -> Result<Option<(FromBroker, Option<OwnedFd>)>, ReceiveError> {
        self.channel.try_receive_without()
    }
}

impl AsFd for Broker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
