//! The socket over which this process stands in for a worker's successor, or for its predecessor. The device thread calls a transfer off that takes
//! too long, so no wait here has an end of its own.

use super::format::StateError;
use super::patient_file::LOOK;
use crate::ipc::{Channel, HandOver, ReceiveError, SendError};
use protocol::ids::ContextId;
use readiness::within;
use rustix::event::PollFlags;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// One end of that socket.
pub(in crate::serve) struct Link {
    pub(in crate::serve) ctx_id: ContextId,
    pub(in crate::serve) channel: Channel,
    pub(in crate::serve) called_off: Arc<AtomicBool>,
}

impl Link {
    /// Waits until the worker has written something, or is gone.
    pub(super) fn await_message(&self) -> Result<(), StateError> {
        while !matches!(within(&self.channel, PollFlags::IN, LOOK), Ok(events) if !events.is_empty()) {
            self.look()?;
        }
        Ok(())
    }

    /// Returns whether the next message is there, or can never come: [`Self::receive`] does not wait now.
    pub(super) fn has_message(&self) -> bool {
        within(&self.channel, PollFlags::IN, Duration::ZERO).is_ok_and(|events| !events.is_empty())
    }

    /// Waits for a message. Returns none if the worker has closed its end.
    pub(super) fn receive(&self) -> Result<Option<(HandOver, Option<OwnedFd>)>, StateError> {
        self.look()?;
        loop {
            match self.channel.try_receive() {
                Ok(Some(message)) => return Ok(Some(message)),
                Ok(None) => self.wait(PollFlags::IN)?,
                Err(ReceiveError::Closed) => return Ok(None),
                Err(ReceiveError::Io(_) | ReceiveError::Malformed(_)) => {
                    return Err(self.broken("its worker sends something that is no message"));
                }
            }
        }
    }

    /// Sends a message, waiting for room.
    pub(super) fn send(&self, message: &HandOver, fd: Option<BorrowedFd<'_>>) -> Result<(), StateError> {
        loop {
            match self.channel.try_send(message, fd) {
                Ok(()) => return Ok(()),
                Err(SendError::Full) => self.wait(PollFlags::OUT)?,
                Err(SendError::Io(_) | SendError::Encode(_)) => {
                    return Err(self.broken("its worker takes nothing more"));
                }
            }
        }
    }

    /// Returns the error of a worker that does not do its part.
    pub(super) fn broken(&self, what: &'static str) -> StateError {
        StateError::Worker(self.ctx_id, what)
    }

    /// Waits for a moment, or until the socket is ready. The next try finds any fault of the socket.
    fn wait(&self, wanted: PollFlags) -> Result<(), StateError> {
        let _ = within(&self.channel, wanted, LOOK);
        self.look()
    }

    fn look(&self) -> Result<(), StateError> {
        match self.called_off.load(Ordering::Relaxed) {
            true => Err(StateError::Cancelled),
            false => Ok(()),
        }
    }
}
