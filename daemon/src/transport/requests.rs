//! The requests to the frontend (vhost-user specification, "Back-end message types"): SHMEM_MAP and SHMEM_UNMAP.
//!
//! The library's proxy waits for room in the socket and for the answer for as long as the frontend likes. No function here waits: a thread that asks
//! polls [`Asked`], and meanwhile does the work that cannot wait.

use super::error::SessionError;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use vhost::vhost_user::message::{BackendReq, FrontendReq, VhostUserMMap};
use vm_memory::ByteValued;

/// The channel that the frontend gave for requests to it. One request is under way at a time, except for those that are sent ahead of the device's
/// start.
#[derive(Debug)]
pub(super) struct Requests {
    socket: OwnedFd,
    /// VHOST_USER_PROTOCOL_F_REPLY_ACK: the frontend answers each request when it is done.
    acknowledges: bool,
}

/// A request that was begun.
#[derive(Debug)]
pub(crate) struct Asked {
    channel: Arc<Requests>,
    message: [u8; REQUEST_BYTES],
    sent: usize,
    /// The file, which is sent with the first byte.
    file: Option<OwnedFd>,
    answer: [u8; ANSWER_BYTES],
    got: usize,
}

/// Request, flags and size of the body, each a little-endian u32.
const HEADER_BYTES: usize = 12;
const REQUEST_BYTES: usize = HEADER_BYTES + size_of::<VhostUserMMap>();
const ANSWER_BYTES: usize = HEADER_BYTES + size_of::<u64>();
/// The parts of the flags: the version of the protocol, the mark of an answer, and the request for an answer.
pub(super) const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// The two bits of the version, and the mark of an answer.
const ANSWER_FLAGS: u32 = 0b11 | REPLY;

impl Requests {
    /// Makes the channel at this socket.
    pub(super) fn new(socket: OwnedFd, acknowledges: bool) -> Self {
        Self { socket, acknowledges }
    }

    /// Returns whether the frontend answers each request when it is done.
    pub(super) fn acknowledges(&self) -> bool {
        self.acknowledges
    }

    /// Begins a request.
    pub(super) fn ask(
        self: &Arc<Self>,
        request: BackendReq,
        body: &VhostUserMMap,
        file: Option<OwnedFd>,
    ) -> Asked {
        let flags = if self.acknowledges { VERSION | NEED_REPLY } else { VERSION };
        let mut message = [0; REQUEST_BYTES];
        message[..HEADER_BYTES].copy_from_slice(&header(request, flags, body.as_slice().len()));
        message[HEADER_BYTES..].copy_from_slice(body.as_slice());
        let channel = Arc::clone(self);
        Asked { channel, message, sent: 0, file, answer: [0; ANSWER_BYTES], got: 0 }
    }
}

impl AsFd for Requests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Asked {
    /// Sends and receives as much as is possible without waiting. Returns whether the frontend has met the request; without acknowledgements,
    /// whether the request was sent.
    ///
    /// # Errors
    ///
    /// The frontend refuses, is gone, or sends bytes that are no answer.
    pub(crate) fn advance(&mut self) -> Result<bool, SessionError> {
        if self.sent < self.message.len() && !self.send()? {
            return Ok(false);
        }
        if !self.channel.acknowledges {
            return Ok(true);
        }
        while self.got < self.answer.len() {
            match recv(&self.channel.socket, &mut self.answer[self.got..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(SessionError::Gone),
                Ok((read, _)) => self.got += read,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(SessionError::Io(error.into())),
            }
        }
        self.judge()
    }

    /// Returns the events for which to poll [`Self::as_fd`].
    pub(crate) fn events(&self) -> PollFlags {
        if self.sent < self.message.len() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Sends as much of the request as is possible without waiting. Returns whether all of it is sent. The answer may be taken later; the answers
    /// to several requests come in the order in which these were sent.
    ///
    /// # Errors
    ///
    /// The frontend is gone, or the system refuses.
    pub(crate) fn send(&mut self) -> Result<bool, SessionError> {
        while self.sent < self.message.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let files: Vec<_> = self.file.iter().map(AsFd::as_fd).collect();
            if !files.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(&files));
            }
            let rest = [IoSlice::new(&self.message[self.sent..])];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.channel.socket, &rest, &mut ancillary, flags) {
                Ok(sent) => {
                    self.sent += sent;
                    self.file = None;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(SessionError::Gone),
                Err(error) => return Err(SessionError::Io(error.into())),
            }
        }
        Ok(true)
    }

    fn judge(&self) -> Result<bool, SessionError> {
        let (head, value) = self.answer.split_at(HEADER_BYTES);
        let [request, ..] = header_bytes(&self.message[..HEADER_BYTES]);
        let [answered, flags, size] = header_bytes(head);
        if answered != request || flags & ANSWER_FLAGS != VERSION | REPLY || size != size_of::<u64>() as u32 {
            return Err(SessionError::NoAnswer);
        }
        if value.iter().any(|byte| *byte != 0) { Err(SessionError::Refused) } else { Ok(true) }
    }
}

impl AsFd for Asked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.socket.as_fd()
    }
}

fn header(request: BackendReq, flags: u32, size: usize) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let fields = [u32::from(request), flags, size as u32];
    for (field, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(fields) {
        *field = value.to_le_bytes();
    }
    bytes
}

fn header_bytes(bytes: &[u8]) -> [u32; 3] {
    let fields = bytes.as_chunks::<4>().0;
    std::array::from_fn(|at| fields.get(at).map_or(0, |field| u32::from_le_bytes(*field)))
}

/// Returns a copy of the channel in the frontend's next message, if that is SET_BACKEND_REQ_FD: the library does not give away the channel that it
/// takes. Waits for the message and leaves it in the socket.
pub(super) fn next_channel(connection: &UnixStream) -> Option<OwnedFd> {
    let mut head = [0; HEADER_BYTES];
    // Without room for descriptors, the kernel copies none.
    let peek = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    recvmsg(connection, &mut [IoSliceMut::new(&mut head)], &mut RecvAncillaryBuffer::default(), peek).ok()?;
    if header_bytes(&head)[0] != FrontendReq::SET_BACKEND_REQ_FD as u32 {
        return None;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let peek = peek | RecvFlags::DONTWAIT;
    recvmsg(connection, &mut [IoSliceMut::new(&mut head)], &mut ancillary, peek).ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn asked(acknowledges: bool) -> (Asked, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let body = VhostUserMMap { shmid: 1, len: 4096, ..Default::default() };
        let file = tempfile::tempfile().unwrap();
        (
            Arc::new(Requests::new(ours.into(), acknowledges)).ask(
                BackendReq::SHMEM_MAP,
                &body,
                Some(file.into()),
            ),
            theirs,
        )
    }

    /// Returns the header that the other end reads.
    fn head(socket: &mut UnixStream) -> [u32; 3] {
        let mut bytes = [0; REQUEST_BYTES];
        socket.read_exact(&mut bytes).unwrap();
        header_bytes(&bytes[..HEADER_BYTES])
    }

    fn answer(fields: [u32; 3], value: u64) -> Vec<u8> {
        fields.iter().flat_map(|field| field.to_le_bytes()).chain(value.to_le_bytes()).collect()
    }

    #[test]
    fn a_request_is_over_when_it_is_acknowledged_in_however_many_pieces() {
        let (mut asked, mut frontend) = asked(true);
        assert!(!asked.advance().unwrap());
        assert_eq!(head(&mut frontend), [9, 9, 40]);
        for byte in answer([9, 5, 8], 0) {
            assert!(!asked.advance().unwrap());
            frontend.write_all(&[byte]).unwrap();
        }
        assert!(asked.advance().unwrap());
    }

    #[test]
    fn without_acknowledgements_it_is_over_when_it_is_sent() {
        let (mut asked, mut frontend) = asked(false);
        assert!(asked.advance().unwrap());
        assert_eq!(head(&mut frontend), [9, 1, 40]);
    }

    #[test]
    fn requests_that_are_sent_ahead_are_answered_in_their_order() {
        let (mut first, mut frontend) = asked(true);
        let mut second = first.channel.ask(BackendReq::SHMEM_MAP, &VhostUserMMap::default(), None);
        assert!(first.send().unwrap() && second.send().unwrap());
        assert_eq!([head(&mut frontend), head(&mut frontend)], [[9, 9, 40]; 2]);
        frontend.write_all(&[answer([9, 5, 8], 0), answer([9, 5, 8], 1)].concat()).unwrap();
        assert!(first.advance().unwrap());
        assert!(second.advance().unwrap_err().is_refusal());
    }

    #[test]
    fn what_is_no_success_is_an_error() {
        for (fields, value) in [([10, 5, 8], 0), ([9, 1, 8], 0), ([9, 5, 4], 0)] {
            let (mut asked, mut frontend) = asked(true);
            frontend.write_all(&answer(fields, value)).unwrap();
            assert!(matches!(asked.advance(), Err(SessionError::NoAnswer)));
        }
        let (mut refused, mut frontend) = asked(true);
        frontend.write_all(&answer([9, 5, 8], 1)).unwrap();
        assert!(refused.advance().unwrap_err().is_refusal());
        let (mut gone, frontend) = asked(true);
        drop(frontend);
        assert!(matches!(gone.advance(), Err(SessionError::Gone)));
    }

    #[test]
    fn a_frontend_that_reads_nothing_holds_nobody_up() {
        let (mut first, _frontend) = asked(true);
        let sends = |asked: &mut Asked| {
            asked.advance().unwrap();
            asked.sent == REQUEST_BYTES
        };
        let body = VhostUserMMap::default();
        let mut sent = 0;
        while sends(&mut first) {
            first = first.channel.ask(BackendReq::SHMEM_UNMAP, &body, None);
            sent += 1;
            assert!(sent < 100_000, "a socket has an end");
        }
        assert_eq!(first.events(), PollFlags::OUT);
    }

    #[test]
    fn the_channel_is_seen_in_its_message_and_in_no_other() {
        let (connection, frontend) = UnixStream::pair().unwrap();
        let (channel, mut other_end) = UnixStream::pair().unwrap();
        let send = |request: u32| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let files = [channel.as_fd()];
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
            let mut message = [0; HEADER_BYTES];
            message[..4].copy_from_slice(&request.to_le_bytes());
            sendmsg(&frontend, &[IoSlice::new(&message)], &mut ancillary, SendFlags::empty()).unwrap();
        };
        let read = || assert_eq!((&connection).read(&mut [0; HEADER_BYTES]).unwrap(), HEADER_BYTES);
        send(5);
        assert!(next_channel(&connection).is_none());
        read();
        send(FrontendReq::SET_BACKEND_REQ_FD as u32);
        let seen = next_channel(&connection).unwrap();
        read();
        rustix::io::write(&seen, b"x").unwrap();
        assert_eq!(other_end.read(&mut [0; 4]).unwrap(), 1);
        drop(frontend);
        assert!(next_channel(&connection).is_none());
    }
}
