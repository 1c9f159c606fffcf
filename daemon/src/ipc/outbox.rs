//! The messages that wait for room in a channel, in their order. A process that sends through an outbox never waits for the peer.

use super::channel::{Channel, SendError};
use serde::Serialize;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The messages for one peer that had no room in its channel yet.
#[derive(Debug)]
pub struct Outbox<M> {
    waiting: VecDeque<(M, Option<OwnedFd>)>,
}

/// A bound on the messages that wait. Several outboxes may share it.
pub trait Bound<M> {
    /// Counts a message that is to wait after `before` others of its outbox.
    ///
    /// # Errors
    ///
    /// The name of the limit that is reached.
    fn take(&mut self, before: usize, message: &M, has_file: bool) -> Result<(), &'static str>;

    /// Takes a message that waits no more out of the count.
    fn give_back(&mut self, message: &M, has_file: bool);
}

/// A bound on the messages of one outbox: the name of the limit, and the limit.
#[derive(Clone, Copy, Debug)]
pub struct AtMost(pub &'static str, pub usize);

/// The reason why a message was neither sent nor kept.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// The peer does not read its messages, and no more of them may wait.
    #[error("limit {0} reached: the peer does not read what it is sent")]
    Limit(&'static str),
    /// The message cannot be sent, now or later.
    #[error(transparent)]
    Send(#[from] SendError),
}

impl<M> Default for Outbox<M> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<M> Outbox<M> {
    /// Returns whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Forgets the messages that wait; the bound is not told.
    pub fn clear(&mut self) {
        self.waiting = VecDeque::new();
    }

    /// Forgets the messages that wait, and gives back what they took from the bound.
    pub fn give_back(&mut self, bound: &mut impl Bound<M>) {
        self.waiting.drain(..).for_each(|(message, file)| bound.give_back(&message, file.is_some()));
    }

    /// Keeps a message for [`Self::flush`], even if there were room for it.
    ///
    /// # Errors
    ///
    /// The name of the limit that is reached.
    pub fn keep(
        &mut self,
        message: M,
        fd: Option<BorrowedFd<'_>>,
        bound: &mut impl Bound<M>,
    ) -> Result<(), &'static str> {
        bound.take(self.waiting.len(), &message, fd.is_some())?;
        match fd.map(|fd| fd.try_clone_to_owned()).transpose() {
            Ok(file) => self.waiting.push_back((message, file)),
            Err(_) => {
                bound.give_back(&message, true);
                return Err("file descriptors");
            }
        }
        Ok(())
    }

    /// Forgets the message that waits first.
    pub fn forget_first(&mut self, bound: &mut impl Bound<M>) {
        if let Some((message, file)) = self.waiting.pop_front() {
            bound.give_back(&message, file.is_some());
        }
    }

    /// Returns the messages that wait here, in order.
    pub fn waiting(&self) -> impl Iterator<Item = (&M, Option<BorrowedFd<'_>>)> {
        self.waiting.iter().map(|(message, file)| (message, file.as_ref().map(AsFd::as_fd)))
    }

    /// Takes out the messages that are `wanted`, in their order.
    #[must_use]
    pub fn take_if(&mut self, wanted: impl Fn(&M) -> bool) -> Self {
        let (taken, left) = self.waiting.drain(..).partition(|(message, _)| wanted(message));
        self.waiting = left;
        Self { waiting: taken }
    }

    /// Appends the messages that wait in another outbox. Both outboxes have the same bound.
    pub fn append(&mut self, other: &mut Self) {
        self.waiting.append(&mut other.waiting);
    }
}

impl<M: Serialize> Outbox<M> {
    /// Sends a message, or keeps it for [`Self::flush`] if there is no room for it or if others wait.
    ///
    /// # Errors
    ///
    /// The reason why the message was neither sent nor kept.
    pub fn send(
        &mut self,
        channel: &Channel,
        message: M,
        fd: Option<BorrowedFd<'_>>,
        bound: &mut impl Bound<M>,
    ) -> Result<(), OutboxError> {
        if self.waiting.is_empty() {
            match channel.try_send(&message, fd) {
                Err(SendError::Full) => {}
                sent => return Ok(sent?),
            }
        }
        self.keep(message, fd, bound).map_err(OutboxError::Limit)
    }

    /// Sends the messages that wait, as far as there is room.
    ///
    /// # Errors
    ///
    /// The first message could not be sent, and is forgotten.
    pub fn flush(&mut self, channel: &Channel, bound: &mut impl Bound<M>) -> Result<(), SendError> {
        while let Some((message, file)) = self.waiting.front() {
            let sent = channel.try_send(message, file.as_ref().map(AsFd::as_fd));
            if matches!(sent, Err(SendError::Full)) {
                break;
            }
            bound.give_back(message, file.is_some());
            self.waiting.pop_front();
            sent?;
        }
        Ok(())
    }
}

impl<M> Bound<M> for AtMost {
    fn take(&mut self, before: usize, _: &M, _: bool) -> Result<(), &'static str> {
        let Self(name, most) = *self;
        if before < most { Ok(()) } else { Err(name) }
    }

    fn give_back(&mut self, _: &M, _: bool) {}
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use std::io::Write;

    /// The number of messages that wait, and of files with them.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Counted(usize, usize);

    impl Bound<u32> for Counted {
        fn take(&mut self, before: usize, _: &u32, has_file: bool) -> Result<(), &'static str> {
            assert_eq!(before, self.0);
            *self = Self(self.0 + 1, self.1 + usize::from(has_file));
            Ok(())
        }

        fn give_back(&mut self, _: &u32, has_file: bool) {
            *self = Self(self.0 - 1, self.1 - usize::from(has_file));
        }
    }

    #[test]
    fn messages_and_files_arrive_in_their_order_however_late_the_peer_reads() {
        let (ours, theirs) = Channel::pair().unwrap();
        let (mut outbox, mut bound) = (Outbox::default(), Counted::default());
        let mut sent = 0_u32;
        while bound.0 < 10 {
            let mut file = tempfile::tempfile().unwrap();
            write!(file, "{sent}").unwrap();
            let file = sent.is_multiple_of(2).then_some(&file);
            outbox.send(&ours, sent, file.map(AsFd::as_fd), &mut bound).unwrap();
            sent += 1;
            assert!(sent < 100_000, "a socket has an end");
        }
        assert_eq!((bound.1, outbox.is_empty()), (5, false));
        for number in 0..sent {
            let (message, file) = theirs.receive::<u32>().unwrap();
            assert_eq!((message, file.is_some()), (number, number.is_multiple_of(2)));
            outbox.flush(&ours, &mut bound).unwrap();
        }
        assert_eq!((bound, outbox.is_empty()), (Counted::default(), true));
        assert!(theirs.try_receive::<u32>().unwrap().is_none());
    }

    #[test]
    fn what_is_kept_is_sent_by_whoever_takes_it_over() {
        let (ours, theirs) = Channel::pair().unwrap();
        let (mut kept, mut outbox, mut bound) = (Outbox::default(), Outbox::default(), Counted::default());
        for number in 0_u32..3 {
            kept.keep(number, None, &mut bound).unwrap();
        }
        assert!(theirs.try_receive::<u32>().unwrap().is_none());
        outbox.append(&mut kept);
        outbox.flush(&ours, &mut bound).unwrap();
        let received: Vec<_> = (0..3).map(|_| theirs.receive::<u32>().unwrap().0).collect();
        assert_eq!((received, &bound, kept.is_empty()), (vec![0, 1, 2], &Counted::default(), true));
        kept.keep(3, None, &mut bound).unwrap();
        kept.give_back(&mut bound);
        assert_eq!((bound, kept.is_empty()), (Counted::default(), true));
    }

    #[test]
    fn a_peer_that_does_not_read_reaches_the_limit() {
        let (ours, _theirs) = Channel::pair().unwrap();
        let (mut outbox, mut bound) = (Outbox::default(), AtMost("backlog", 3));
        let refused = (0..100_000).find_map(|number: u32| outbox.send(&ours, number, None, &mut bound).err());
        assert!(matches!(refused, Some(OutboxError::Limit("backlog"))));
        assert_eq!(outbox.waiting.len(), 3);
        outbox.clear();
        assert!(outbox.is_empty());
    }

    #[test]
    fn what_waits_for_a_peer_that_has_gone_is_forgotten_one_by_one() {
        let (ours, theirs) = Channel::pair().unwrap();
        let (mut outbox, mut bound) = (Outbox::default(), Counted::default());
        while bound.0 < 2 {
            outbox.send(&ours, 0, None, &mut bound).unwrap();
        }
        drop(theirs);
        // A child that another test starts at the same time may hold the peer's end for a moment.
        assert!(ours.receive::<u32>().is_err());
        assert!(outbox.flush(&ours, &mut bound).is_err());
        assert_eq!(bound, Counted(1, 0));
        assert!(outbox.flush(&ours, &mut bound).is_err());
        assert!(outbox.flush(&ours, &mut bound).is_ok());
        assert!(matches!(outbox.send(&ours, 0, None, &mut bound), Err(OutboxError::Send(SendError::Io(_)))));
        assert_eq!((bound, outbox.is_empty()), (Counted::default(), true));
    }
}
