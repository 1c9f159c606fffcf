//! Typed commands on the control queue, contexts, submissions and fences.

use crate::frontend::virtqueue::{Completion, Request};
use crate::frontend::{Session, ranges::Ranges};
use anyhow::{Context, Result};
use parking_lot::Mutex;
use protocol::ids::{CapsetId, ContextId, FenceId, ResourceId, RingIdx};
use protocol::virtio_gpu::{Command, Fence, FenceTimeline, Header, Response, ResponseType};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// The time that a test waits for an answer that must come.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Room for every response of this device.
const RESPONSE_ROOM: u32 = 2048;

/// The reason why a command has no successful response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The device answered with `VIRTIO_GPU_RESP_ERR_*`.
    #[error("the device answered {:#x}", .0.0)]
    Refused(ResponseType),
    /// The session ended before the answer.
    #[error("the session ended")]
    SessionOver,
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// Bytes that are no response.
    #[error("the response is malformed")]
    Malformed,
}

/// An answer that is still to come.
pub struct Answer(Receiver<Option<Vec<u8>>>);

/// The driver of one device.
pub struct Gpu {
    /// The vhost-user session under the driver.
    pub session: Session,
    pub(super) window: Arc<Mutex<Ranges>>,
    next_context: AtomicU32,
    next_resource: AtomicU32,
    next_fence: AtomicU64,
}

impl Gpu {
    /// A driver that has just been loaded.
    pub fn new(session: Session) -> Self {
        let window = Arc::new(Mutex::new(Ranges::new(0, session.window.size(), 4096)));
        let (next_context, next_resource, next_fence) =
            (AtomicU32::new(1), AtomicU32::new(1), AtomicU64::new(1));
        Self { session, window, next_context, next_resource, next_fence }
    }

    /// The driver in a copy of its VM, which has this session.
    pub fn fork(&self, session: Session) -> Self {
        let next = |counter: &AtomicU32| AtomicU32::new(counter.load(Ordering::Relaxed));
        Self {
            session,
            window: Arc::new(Mutex::new(self.window.lock().clone())),
            next_context: next(&self.next_context),
            next_resource: next(&self.next_resource),
            next_fence: AtomicU64::new(self.next_fence.load(Ordering::Relaxed)),
        }
    }

    /// Sends a command and waits for its response.
    pub fn call(&self, command: &Command<'_>, context: Option<ContextId>) -> Result<Response, GpuError> {
        self.start(command, context, None).wait(PATIENCE)
    }

    /// Sends a command without waiting.
    pub fn start(&self, command: &Command<'_>, context: Option<ContextId>, fence: Option<Fence>) -> Answer {
        let (sender, receiver) = sync_channel(1);
        self.send(command, context, fence, Box::new(move |response| drop(sender.send(response))));
        Answer(receiver)
    }

    /// Sends a command; `completion` gets the response's bytes.
    pub fn send(
        &self,
        command: &Command<'_>,
        context: Option<ContextId>,
        fence: Option<Fence>,
        completion: Completion,
    ) {
        let mut bytes = Vec::new();
        command.encode(context, fence, &mut bytes);
        self.send_bytes(vec![(bytes, completion)]);
    }

    /// Sends bytes as they are, each as one request; one kick for all.
    pub fn send_bytes(&self, requests: Vec<(Vec<u8>, Completion)>) {
        let (bytes, completions): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        let pieces: Vec<[&[u8]; 1]> = bytes.iter().map(|bytes| [bytes.as_slice()]).collect();
        let requests = pieces.iter().zip(completions);
        let requests = requests.map(|(readable, completion)| Request {
            readable,
            response_len: RESPONSE_ROOM,
            completion,
        });
        if let Err(e) = self.session.control.submit(requests.collect()) {
            // The driver's own memory is exhausted: completions were dropped, so their waiters see the end of the session.
            log::error!("a request could not be placed on the control queue: {e:#}");
        }
    }

    /// Capability set `VENUS`, as Mesa asks for it.
    pub fn capset(&self) -> Result<Vec<u8>> {
        match self.call(&Command::GetCapset { capset_id: CapsetId::VENUS, capset_version: 0 }, None)? {
            Response::OkCapset(capset) => Ok(capset),
            other => anyhow::bail!("GET_CAPSET was answered {other:?}"),
        }
    }

    /// A fresh Venus context.
    pub fn create_context(&self, name: &str) -> Result<ContextId, GpuError> {
        let ctx_id = self.new_context_id();
        let command = Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: name.as_bytes() };
        self.call(&command, Some(ctx_id)).map(|_| ctx_id)
    }

    /// Ends a context and waits until the device has ended it.
    pub fn destroy_context(&self, context: ContextId) -> Result<(), GpuError> {
        self.call(&Command::CtxDestroy, Some(context)).map(drop)
    }

    /// SUBMIT_3D without a fence; not waited for.
    pub fn submit(&self, context: ContextId, data: &[u8]) -> Answer {
        self.start(&Command::Submit3d { data }, Some(context), None)
    }

    /// SUBMIT_3D with a fence on a timeline of the context; the answer is the fence.
    pub fn submit_fenced(&self, context: ContextId, ring_idx: RingIdx, data: &[u8]) -> Answer {
        self.start(&Command::Submit3d { data }, Some(context), Some(self.fence(ring_idx)))
    }

    /// The next fence, on a timeline of a context.
    pub fn fence(&self, ring_idx: RingIdx) -> Fence {
        let fence_id = FenceId(self.next_fence.fetch_add(1, Ordering::Relaxed));
        Fence { timeline: FenceTimeline::Ring(ring_idx), fence_id }
    }

    /// A context id that was never used.
    pub fn new_context_id(&self) -> ContextId {
        ContextId(self.next_context.fetch_add(1, Ordering::Relaxed))
    }

    /// A resource id that was never used.
    pub fn new_resource_id(&self) -> ResourceId {
        ResourceId(self.next_resource.fetch_add(1, Ordering::Relaxed))
    }
}

impl Answer {
    pub(super) fn new(receiver: Receiver<Option<Vec<u8>>>) -> Self {
        Self(receiver)
    }

    /// Waits for the response; an error response is an error.
    pub fn wait(&self, timeout: Duration) -> Result<Response, GpuError> {
        match self.wait_with_header(timeout)?.1 {
            Response::Err(error) => Err(GpuError::Refused(error)),
            response => Ok(response),
        }
    }

    /// Waits for the response, success or error, and the header it echoes.
    pub fn wait_with_header(&self, timeout: Duration) -> Result<(Header, Response), GpuError> {
        match self.0.recv_timeout(timeout) {
            Ok(Some(bytes)) => Response::decode(&bytes).ok_or(GpuError::Malformed),
            Ok(None) | Err(RecvTimeoutError::Disconnected) => Err(GpuError::SessionOver),
            Err(RecvTimeoutError::Timeout) => Err(GpuError::TimedOut),
        }
    }

    /// Returns whether the answer has arrived or arrives within `timeout`; the call consumes it.
    pub fn arrives_within(&self, timeout: Duration) -> bool {
        self.0.recv_timeout(timeout).is_ok()
    }
}

/// The error of a step that a test cannot go on without.
pub(super) fn required<T>(step: &'static str, result: Result<T, GpuError>) -> Result<T> {
    result.context(step)
}
