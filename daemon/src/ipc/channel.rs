//! One end of a packet socket between two processes, such as the device process and a worker.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Serialize, de::DeserializeOwned};
use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A typed packet socket.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// The reason why a packet could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The socket buffer is full (only with [`Channel::try_send`]).
    #[error("the peer does not keep up")]
    Full,
    /// The peer is gone or the system refused.
    #[error("cannot send to the peer: {0}")]
    Io(#[from] Errno),
    /// A message of ours is larger than a packet may be.
    #[error("message does not fit a packet: {0}")]
    Encode(#[from] postcard::Error),
}

impl SendError {
    /// Returns whether the peer has closed its end, or has died.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Io(Errno::PIPE | Errno::CONNRESET))
    }
}

/// The reason why no message came.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The peer closed its end.
    #[error("the peer closed the channel")]
    Closed,
    /// The system refused.
    #[error("cannot receive from the peer: {0}")]
    Io(#[from] Errno),
    /// The peer sent something that is no message: it is broken or hostile.
    #[error("the peer sent a malformed packet: {0}")]
    Malformed(&'static str),
}

thread_local! {
    /// Room for one packet. A new buffer for every message would cost more than receiving.
    static PACKET: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The treatment of a message that arrives without its descriptor because this process can have no more descriptors.
#[derive(Clone, Copy)]
enum Lacking {
    /// The message counts as malformed.
    Refused,
    /// The message counts without its descriptor.
    Accepted,
}

/// The largest packet in bytes: the largest inline submission and room for its frame.
const PACKET_MAX: usize = super::INLINE_SUBMIT_MAX + 1024;

impl Channel {
    /// Makes a connected pair, both ends close-on-exec and blocking.
    pub fn pair() -> Result<(Self, Self), Errno> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self { socket: a }, Self { socket: b }))
    }

    /// Takes over a socket inherited from the parent process.
    pub fn from_socket(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Gives the socket up, to pass it to a child.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Sends one message, waiting for room.
    pub fn send<M: Serialize>(&self, message: &M, fd: Option<BorrowedFd<'_>>) -> Result<(), SendError> {
        self.send_with(&postcard::to_stdvec(message)?, fd, SendFlags::NOSIGNAL)
    }

    /// Sends one message, or returns [`SendError::Full`] at once.
    pub fn try_send<M: Serialize>(&self, message: &M, fd: Option<BorrowedFd<'_>>) -> Result<(), SendError> {
        self.send_with(&postcard::to_stdvec(message)?, fd, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_with(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>, flags: SendFlags) -> Result<(), SendError> {
        if bytes.len() > PACKET_MAX {
            return Err(postcard::Error::SerializeBufferFull.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(SendError::Full),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Receives one message, waiting for it.
    pub fn receive<M: DeserializeOwned>(&self) -> Result<(M, Option<OwnedFd>), ReceiveError> {
        self.receive_with(RecvFlags::CMSG_CLOEXEC, Lacking::Refused)?.ok_or(ReceiveError::Closed)
    }

    /// Receives one message if one has arrived.
    pub fn try_receive<M: DeserializeOwned>(&self) -> Result<Option<(M, Option<OwnedFd>)>, ReceiveError> {
        self.receive_with(RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT, Lacking::Refused)
    }

    /// Does the same as [`Self::try_receive`]. If this process can have no more descriptors, it returns the message without its descriptor.
    pub fn try_receive_without<M: DeserializeOwned>(
        &self,
    ) -> Result<Option<(M, Option<OwnedFd>)>, ReceiveError> {
        self.receive_with(RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT, Lacking::Accepted)
    }

    fn receive_with<M: DeserializeOwned>(
        &self,
        flags: RecvFlags,
        lacking: Lacking,
    ) -> Result<Option<(M, Option<OwnedFd>)>, ReceiveError> {
        PACKET.with_borrow_mut(|packet| {
            packet.resize(PACKET_MAX, 0);
            self.receive_into(packet, flags, lacking)
        })
    }

    fn receive_into<M: DeserializeOwned>(
        &self,
        packet: &mut [u8],
        flags: RecvFlags,
        lacking: Lacking,
    ) -> Result<Option<(M, Option<OwnedFd>)>, ReceiveError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            match recvmsg(&self.socket, &mut [IoSliceMut::new(packet)], &mut ancillary, flags) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(ReceiveError::Closed),
                Err(e) => return Err(e.into()),
            }
        };
        let mut fds: Vec<OwnedFd> = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Err(ReceiveError::Closed);
        }
        // The kernel delivers none of a message's descriptors if it has no number for the first.
        let cut = match lacking {
            Lacking::Accepted if fds.is_empty() => ReturnFlags::TRUNC,
            Lacking::Accepted | Lacking::Refused => ReturnFlags::TRUNC | ReturnFlags::CTRUNC,
        };
        if received.flags.intersects(cut) || fds.len() > 1 {
            return Err(ReceiveError::Malformed("too long or with too many descriptors"));
        }
        Ok(Some((decode(&packet[..received.bytes])?, fds.pop())))
    }
}

/// Returns the bytes of a message, or of a value that is sent in several messages.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, SendError> {
    Ok(postcard::to_stdvec(message)?)
}

/// Returns the message that fills a packet, or the value that [`encode`] has encoded.
pub fn decode<M: DeserializeOwned>(packet: &[u8]) -> Result<M, ReceiveError> {
    let (message, rest) = decode_first(packet)?;
    if !rest.is_empty() {
        return Err(ReceiveError::Malformed("bytes after the message"));
    }
    Ok(message)
}

/// Returns the message at the start of these bytes, and the bytes after it.
pub fn decode_first<M: DeserializeOwned>(bytes: &[u8]) -> Result<(M, &[u8]), ReceiveError> {
    postcard::take_from_bytes(bytes).map_err(|_| ReceiveError::Malformed("not a message"))
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::{Fence, FromBroker, ResourceKind, ToDevice, ToWorker};
    use protocol::ids::{FenceId, ResourceId, RingIdx};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::process::Command;

    #[test]
    fn a_message_arrives_with_its_descriptor() {
        let (a, b) = Channel::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"pages").unwrap();
        let sent = ToWorker::AttachResource {
            resource_id: ResourceId(7),
            size: 4096,
            kind: ResourceKind::SharedMemory,
        };
        a.send(&sent, Some(file.as_fd())).unwrap();
        let (got, fd): (ToWorker, _) = b.receive().unwrap();
        assert_eq!(got, sent);
        let mut back = File::from(fd.unwrap());
        back.rewind().unwrap();
        let mut text = String::new();
        back.read_to_string(&mut text).unwrap();
        assert_eq!(text, "pages");
    }

    /// The environment variable of the process that has no more descriptors, which runs this test once more.
    const HAS_NO_MORE: &str = "A_MESSAGE_COMES_WITHOUT_ITS_DESCRIPTOR";

    #[test]
    fn a_message_comes_without_its_descriptor_if_the_process_can_have_no_more() {
        let own =
            "ipc::channel::tests::a_message_comes_without_its_descriptor_if_the_process_can_have_no_more";
        if std::env::var_os(HAS_NO_MORE).is_none() {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let child = child.args(["--exact", own, "--nocapture"]).env(HAS_NO_MORE, "1").output().unwrap();
            let said = String::from_utf8_lossy(&child.stdout);
            assert!(child.status.success() && said.contains("1 passed"), "{child:?}");
            return;
        }
        let (a, b) = Channel::pair().unwrap();
        for _ in 0..2 {
            a.send(&FromBroker::HandOn, Some(a.as_fd())).unwrap();
        }
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        assert!(matches!(b.try_receive::<FromBroker>(), Err(ReceiveError::Malformed(_))));
        let (heard, file) = b.try_receive_without().unwrap().unwrap();
        assert_eq!((heard, file.is_none()), (FromBroker::HandOn, true));
        setrlimit(Resource::Nofile, limit).unwrap();
        a.send(&FromBroker::HandOn, Some(a.as_fd())).unwrap();
        assert!(b.try_receive_without::<FromBroker>().unwrap().unwrap().1.is_some());
    }

    #[test]
    fn the_largest_inline_submission_fits() {
        let (a, b) = Channel::pair().unwrap();
        let inline = vec![0xa5; super::super::INLINE_SUBMIT_MAX];
        let fence = Some(Fence { ring_idx: RingIdx(63), fence_id: FenceId(u64::MAX) });
        let sent = ToWorker::Submit { size: inline.len() as u32, inline, fence };
        a.send(&sent, None).unwrap();
        assert_eq!(b.receive::<ToWorker>().unwrap().0, sent);
    }

    #[test]
    fn garbage_is_malformed_and_an_end_is_closed() {
        let (a, b) = Channel::pair().unwrap();
        rustix::net::send(a.as_fd(), &[0xff; 40], SendFlags::empty()).unwrap();
        assert!(matches!(b.receive::<ToDevice>(), Err(ReceiveError::Malformed(_))));
        assert!(b.try_receive::<ToDevice>().unwrap().is_none());
        drop(a);
        assert!(matches!(b.receive::<ToDevice>(), Err(ReceiveError::Closed)));
    }

    #[test]
    fn a_peer_that_does_not_read_makes_try_send_answer_full() {
        let (a, _b) = Channel::pair().unwrap();
        let message = ToDevice::Lost { at_fault: None, reason: "x".repeat(30_000) };
        let full = (0..1000).find_map(|_| a.try_send(&message, None).err());
        assert!(matches!(full, Some(SendError::Full)));
    }
}
