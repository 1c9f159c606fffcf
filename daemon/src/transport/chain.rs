//! Descriptor chains: the readable part is copied once, the writable part is remembered, and the answer is given exactly once.

use super::vring::Vring;
use protocol::virtio_gpu::{CommandType, HEADER_BYTES, Header, RESPONSE_BYTES_MAX, Response, ResponseType};
use std::ops::Deref;
use std::sync::Arc;
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress, GuestMemory};

/// A writable piece of guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    addr: GuestAddress,
    len: u32,
}

#[cfg(any(test, feature = "fuzzing"))]
impl Segment {
    /// Whether the byte at this address is one of it.
    pub(super) fn contains(&self, addr: u64) -> bool {
        addr.checked_sub(self.addr.0).is_some_and(|offset| offset < u64::from(self.len))
    }
}

/// A request whose answer is due. Dropped without one, it answers `VIRTIO_GPU_RESP_ERR_UNSPEC` and is counted and logged as a bug of
/// this program, unless its queue was reset in the meantime.
#[derive(Debug)]
pub struct PendingResponse {
    vring: Arc<Vring>,
    generation: u32,
    head: u16,
    /// `None` if the request was too short to have one.
    header: Option<Header>,
    segments: Vec<Segment>,
    answered: bool,
}

impl PendingResponse {
    /// The header of the request, if it was long enough to have one.
    pub fn header(&self) -> Option<Header> {
        self.header
    }

    /// Answers the request. Chains without room for an answer (the cursor queue's) are just returned.
    pub fn respond(mut self, response: &Response) {
        self.finish(response);
    }

    fn finish(&mut self, response: &Response) {
        let (segments, answer) = self.encode(response);
        self.vring.complete(self.generation, self.head, segments, answer, self.is_awaited(response));
    }

    /// Whether somebody in the guest may wait for the answer: not for that of a stream without a fence.
    fn is_awaited(&self, response: &Response) -> bool {
        let is_stream =
            |header: &Header| header.command == CommandType::SUBMIT_3D && header.fence().is_none();
        !(matches!(response, Response::OkNodata) && self.header.as_ref().is_some_and(is_stream))
    }

    /// Where the answer goes, and its bytes.
    fn encode(&mut self, response: &Response) -> (Vec<Segment>, Vec<u8>) {
        self.answered = true;
        let mut answer = Vec::new();
        if let Some(header) = &self.header
            && !self.segments.is_empty()
        {
            response.encode(header, &mut answer);
        }
        (std::mem::take(&mut self.segments), answer)
    }

    /// A request that came from nowhere.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn of(vring: &Arc<Vring>, header: Header) -> Self {
        let vring = Arc::clone(vring);
        Self { vring, generation: 0, head: 0, header: Some(header), segments: Vec::new(), answered: false }
    }

    /// The answer for a queue that only a fuzzer knows.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn into_answer(mut self, response: &Response) -> (Vec<Segment>, Vec<u8>) {
        self.encode(response)
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if !self.answered {
            // The log names the first of a queue: a guest that knows how to reach the bug does not fill it.
            if self.vring.count_unanswered(self.generation) == Some(1) {
                let (command, ctx_id) =
                    self.header.map_or((0, 0), |header| (header.command.0, header.ctx_id));
                log::error!(command, ctx_id; "a request was dropped unanswered, which is a bug; the guest gets an unspecified error");
            }
            self.finish(&Response::Err(ResponseType::ERR_UNSPEC));
        }
    }
}

/// Copies the readable bytes of a chain, at most `limit`, and remembers where its answer goes. What cannot be read ends the
/// request there; it then is too short for its command.
pub(super) fn read<M>(
    vring: &Arc<Vring>,
    memory: &M::Target,
    chain: DescriptorChain<M>,
    generation: u32,
    limit: usize,
    request: &mut Vec<u8>,
) -> PendingResponse
where
    M: Deref<Target: GuestMemory>,
{
    request.clear();
    let head = chain.head_index();
    let mut segments = Vec::new();
    let mut room = 0;
    let mut readable = true;
    for descriptor in chain {
        if descriptor.is_write_only() {
            // More than the longest answer is never written, so no more segments are kept than that takes.
            if room < RESPONSE_BYTES_MAX && descriptor.len() > 0 {
                room = room.saturating_add(descriptor.len() as usize);
                segments.push(Segment { addr: descriptor.addr(), len: descriptor.len() });
            }
        } else if readable {
            readable =
                append(memory, &Segment { addr: descriptor.addr(), len: descriptor.len() }, limit, request);
        }
    }
    let header = if request.len() < HEADER_BYTES { None } else { Header::decode(request) };
    PendingResponse { vring: Arc::clone(vring), generation, head, header, segments, answered: false }
}

/// Appends a segment's bytes; false if the limit is reached or the memory is not there.
fn append(
    memory: &(impl GuestMemory + ?Sized),
    segment: &Segment,
    limit: usize,
    request: &mut Vec<u8>,
) -> bool {
    let start = request.len();
    let len = (segment.len as usize).min(limit - start);
    request.resize(start + len, 0);
    let read = memory.read_slice(&mut request[start..], segment.addr).is_ok();
    if !read {
        request.truncate(start);
    }
    read && len == segment.len as usize
}

/// Writes an answer into the segments, as much of it as fits, and returns the bytes written.
pub(super) fn write(memory: &impl GuestMemory, segments: &[Segment], answer: &[u8]) -> u32 {
    let mut rest = answer;
    let mut written = 0;
    for segment in segments {
        let (part, after) = rest.split_at(rest.len().min(segment.len as usize));
        if memory.write_slice(part, segment.addr).is_err() {
            break;
        }
        written += part.len() as u32;
        rest = after;
    }
    written
}
