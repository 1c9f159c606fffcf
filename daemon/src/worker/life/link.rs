//! The socket between a worker and its successor. Neither waits for the other for ever, nor trusts it.

use crate::ipc::{Channel, HandOver, ReceiveError, SendError};
use crate::worker::patience::patience;
use rustix::event::PollFlags;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use vulkan::{Cancel, Cause, InheritedError};

/// One end of that socket.
pub(super) struct Link {
    channel: Channel,
    /// Set when the context ends.
    cancel: Cancel,
    deadline: Instant,
}

/// The reason why no message can be sent or received any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LinkError {
    /// The other end is closed.
    #[error("the other worker is gone")]
    Closed,
    /// The other worker takes too long.
    #[error("the other worker takes too long")]
    TooLong,
    /// The other worker sent bytes that are no message, or the system refuses.
    #[error("no message comes from the other worker")]
    Broken,
    /// The context has ended.
    #[error("the context has ended")]
    Ended,
}

impl From<LinkError> for Cause {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Ended => Self::Ended,
            other => InheritedError::Link(other.to_string()).into(),
        }
    }
}

/// The time that all messages together may take, at last: more than the longest `--driver-timeout`. The device process knows that option and calls a
/// hand-over off much earlier; it then ends one of the two workers, whose end of the socket closes.
pub(super) const PATIENCE: Duration = patience(75 * 60);

/// Time between two looks whether the context has ended.
const SLICE: Duration = Duration::from_millis(100);

impl Link {
    /// Makes an end of a socket that came with a message; `cancel` ends all waits, as does the end of `patience`.
    pub(super) fn new(socket: OwnedFd, cancel: Cancel, patience: Duration) -> Self {
        Self { channel: Channel::from_socket(socket), cancel, deadline: Instant::now() + patience }
    }

    /// Sends a message, waiting for room.
    pub(super) fn send(&self, message: &HandOver, fd: Option<BorrowedFd<'_>>) -> Result<(), LinkError> {
        loop {
            let left = self.left()?;
            match self.channel.try_send(message, fd) {
                Ok(()) => return Ok(()),
                Err(SendError::Full) => self.wait(PollFlags::OUT, left),
                Err(SendError::Io(_)) => return Err(LinkError::Closed),
                Err(SendError::Encode(_)) => return Err(LinkError::Broken),
            }
        }
    }

    /// Waits for a message.
    pub(super) fn receive(&self) -> Result<(HandOver, Option<OwnedFd>), LinkError> {
        loop {
            let left = self.left()?;
            match self.try_receive()? {
                Some(received) => return Ok(received),
                None => self.wait(PollFlags::IN, left),
            }
        }
    }

    /// Returns a message if one has come.
    pub(super) fn try_receive(&self) -> Result<Option<(HandOver, Option<OwnedFd>)>, LinkError> {
        self.channel.try_receive().map_err(|error| match error {
            ReceiveError::Closed => LinkError::Closed,
            ReceiveError::Io(_) | ReceiveError::Malformed(_) => LinkError::Broken,
        })
    }

    /// Returns the remaining time.
    fn left(&self) -> Result<Duration, LinkError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match (self.cancel.is_cancelled(), left.is_zero()) {
            (true, _) => Err(LinkError::Ended),
            (false, true) => Err(LinkError::TooLong),
            (false, false) => Ok(left),
        }
    }

    /// Waits for a moment, or until the socket is ready. The next try finds any fault of the socket.
    fn wait(&self, wanted: PollFlags, left: Duration) {
        let _ = readiness::within(&self.channel, wanted, left.min(SLICE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(patience: Duration) -> (Link, Channel, Cancel) {
        let (ours, peer) = Channel::pair().unwrap();
        let cancel = Cancel::default();
        (Link::new(ours.into_socket(), cancel.clone(), patience), peer, cancel)
    }

    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn nobody_waits_for_an_end_that_does_not_read_or_write() {
        let (link, peer, cancel) = link(SHORT);
        let bytes = HandOver::Bytes(vec![0; 60_000]);
        let error = (0..1000).find_map(|_| link.send(&bytes, None).err());
        assert_eq!(error, Some(LinkError::TooLong));
        assert_eq!(link.receive().unwrap_err(), LinkError::TooLong);
        cancel.cancel();
        assert_eq!(link.receive().unwrap_err(), LinkError::Ended);
        drop(peer);
        let (link, peer, _cancel) = self::link(Duration::from_secs(100));
        drop(peer);
        assert_eq!(link.receive().unwrap_err(), LinkError::Closed);
        assert_eq!(link.send(&bytes, None), Err(LinkError::Closed));
    }

    #[test]
    fn who_sends_again_and_again_is_not_listened_to_for_ever() {
        let (link, peer, _cancel) = link(SHORT);
        std::thread::scope(|scope| {
            scope.spawn(move || while peer.send(&HandOver::Bytes(Vec::new()), None).is_ok() {});
            let error = loop {
                if let Err(error) = link.receive() {
                    break error;
                }
            };
            assert_eq!(error, LinkError::TooLong);
            drop(link);
        });
    }

    #[test]
    fn messages_arrive_and_others_do_not() {
        let (link, peer, _cancel) = link(Duration::from_secs(100));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(SHORT);
                peer.send(&HandOver::End, None).unwrap();
            });
            assert_eq!(link.receive().unwrap().0, HandOver::End);
        });
        peer.send(&"no message", None).unwrap();
        assert_eq!(link.receive().unwrap_err(), LinkError::Broken);
    }
}
