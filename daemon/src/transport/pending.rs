//! The requests that were taken and not answered yet: each is answered exactly once.

use super::chain::{self, Segment, Taken};
use super::vring::{Chain, NoRequest, Vring};
use super::{CONTROLQ, CURSORQ};
use protocol::ids::{FenceId, RingIdx};
use protocol::virtio_gpu::{CommandType, Header, HeaderFlags, Response, ResponseType};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A request whose answer is due. If it is dropped without an answer, it answers `VIRTIO_GPU_RESP_ERR_UNSPEC`, and is counted and logged as a
/// bug of this program, unless its queue was reset in the meantime.
#[derive(Debug)]
pub(crate) struct PendingResponse {
    vring: Arc<Vring>,
    generation: u32,
    chain: Chain,
    /// The header; `None` if the request was too short for a header.
    header: Option<Header>,
    segments: Vec<Segment>,
    answered: bool,
}

/// A request whose answer is due, written down for another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PassedRequest {
    pub(super) queue: QueueIndex,
    head: u16,
    descriptors: u32,
    header: Option<PassedHeader>,
    segments: Vec<Segment>,
}

/// The index of a queue that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum QueueIndex {
    Control,
    Cursor,
}

impl QueueIndex {
    /// Returns the index.
    pub(super) fn index(self) -> usize {
        match self {
            Self::Control => CONTROLQ,
            Self::Cursor => CURSORQ,
        }
    }
}

impl PassedRequest {
    /// Returns the index of the request's queue.
    pub(crate) fn queue(&self) -> usize {
        self.queue.index()
    }
}

/// The header of such a request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct PassedHeader {
    command: u32,
    flags: u32,
    fence_id: FenceId,
    ctx_id: u32,
    ring_idx: RingIdx,
}

impl Vring {
    /// Takes the next request: its readable bytes, at most `limit` of them, into `request`. `generation` is the last one that the caller knows of.
    ///
    /// # Errors
    ///
    /// The reason why no request was taken.
    pub(crate) fn pop(
        self: &Arc<Self>,
        generation: u32,
        limit: usize,
        request: &mut Vec<u8>,
    ) -> Result<PendingResponse, NoRequest> {
        let (chain, memory) = self.next_chain(generation)?;
        let taken = chain::read(&*memory, chain, limit, request);
        Ok(PendingResponse::new(self, generation, taken))
    }
}

impl PendingResponse {
    /// Makes the pending answer to a request that was taken from a queue of this generation.
    pub(super) fn new(vring: &Arc<Vring>, generation: u32, taken: Taken) -> Self {
        let Taken { head, descriptors, header, segments } = taken;
        let chain = vring.holds(head, descriptors);
        Self { vring: Arc::clone(vring), generation, chain, header, segments, answered: false }
    }

    /// Writes the request down, whose queue is one of these. Returns none if the queue was reset, which makes the request void.
    pub(super) fn pass_on(&self, vrings: &[Arc<Vring>]) -> Option<PassedRequest> {
        let is_own = |queue: &QueueIndex| Arc::ptr_eq(&vrings[queue.index()], &self.vring);
        let queue = [QueueIndex::Control, QueueIndex::Cursor].into_iter().find(is_own)?;
        let is_current = self.vring.generation() == self.generation;
        is_current.then(|| PassedRequest {
            queue,
            head: self.chain.head(),
            descriptors: self.chain.descriptors(),
            header: self.header.map(PassedHeader::from),
            segments: self.segments.clone(),
        })
    }

    /// Goes on with a request that another process has taken from this queue.
    pub(super) fn resume(vring: &Arc<Vring>, passed: PassedRequest) -> Self {
        let PassedRequest { head, descriptors, header, segments, .. } = passed;
        let (generation, chain) = vring.holds_again(head, descriptors);
        let header = header.map(Header::from);
        Self { vring: Arc::clone(vring), generation, chain, header, segments, answered: false }
    }

    /// Returns the header of the request, if the request was long enough for a header.
    pub(crate) fn header(&self) -> Option<Header> {
        self.header
    }

    /// Answers the request. Chains without room for an answer (the cursor queue's) are just returned.
    pub(crate) fn respond(mut self, response: &Response) {
        self.finish(response);
    }

    fn finish(&mut self, response: &Response) {
        let (segments, answer) = self.encode(response);
        self.vring.complete(self.generation, self.chain, segments, answer, self.is_awaited(response));
    }

    /// Returns whether a thread of the guest may wait for the answer, which none does for a stream without a fence.
    fn is_awaited(&self, response: &Response) -> bool {
        let is_stream =
            |header: &Header| header.command == CommandType::SUBMIT_3D && header.fence().is_none();
        !(matches!(response, Response::OkNodata) && self.header.as_ref().is_some_and(is_stream))
    }

    /// Returns the guest memory for the answer, and the bytes of the answer.
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

    /// Makes a request that no driver has sent.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn of(vring: &Arc<Vring>, header: Header) -> Self {
        Self::new(vring, 0, Taken { head: 0, descriptors: 1, header: Some(header), segments: Vec::new() })
    }

    /// Returns the answer, for a queue that only a fuzzer knows.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn into_answer(mut self, response: &Response) -> (Vec<Segment>, Vec<u8>) {
        self.encode(response)
    }
}

impl From<Header> for PassedHeader {
    fn from(header: Header) -> Self {
        let Header { command: CommandType(command), flags, fence_id, ctx_id, ring_idx } = header;
        Self { command, flags: flags.bits(), fence_id, ctx_id, ring_idx }
    }
}

impl From<PassedHeader> for Header {
    fn from(passed: PassedHeader) -> Self {
        let PassedHeader { command, flags, fence_id, ctx_id, ring_idx } = passed;
        let (command, flags) = (CommandType(command), HeaderFlags::from_bits_truncate(flags));
        Self { command, flags, fence_id, ctx_id, ring_idx }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if !self.answered {
            // The log names only the first such request of a queue, so that a guest that knows how to reach the bug does not fill the log.
            if self.vring.count_unanswered(self.generation) == Some(1) {
                let (command, context) =
                    self.header.map_or((0, 0), |header| (header.command.0, header.ctx_id));
                log::error!(context; "a request of context {context} (command {command:#x}) was dropped unanswered, which is a bug; the guest gets an unspecified error");
            }
            self.finish(&Response::Err(ResponseType::ERR_UNSPEC));
        }
    }
}
