//! The events that a guest, a frontend or a worker can cause, and the log line of each for operators: what happened, and the remedy.

use crate::device::GuestError;
use log::Level;
use outside::{Quoted, Span};
use protocol::ids::{ContextId, ResourceId};
use protocol::virtio_gpu::CommandType;
use std::fmt;
use std::time::Duration;

/// An event of the device as a whole.
#[derive(Clone, Copy)]
pub(in crate::serve) enum DeviceEvent<'a> {
    FrontendConnected,
    FrontendDisconnected,
    /// A frontend gets no session, because descriptors or threads are used up.
    FrontendRefused(&'a dyn fmt::Display),
    /// The session with a frontend has failed.
    SessionFailed(&'a dyn fmt::Display),
    /// The guest's driver has reset the device.
    Reset,
    /// The guest's driver has broken the rules of this queue.
    BrokenQueue(usize),
    /// A request has fewer bytes than a header.
    ShortRequest,
    /// The frontend has not announced a change of its mappings within this time.
    TableUnchanged(Duration),
    /// The state of so many contexts was written into the frontend's file within this time.
    StateSaved(usize, Span),
    StateNotSaved(&'a dyn fmt::Display),
    /// The device goes on with the state of so many contexts, which was read within this time.
    StateLoaded(usize, Span),
    /// The frontend has made so many mappings of a loaded state, and this process has waited so long for them.
    LoadedMapped(usize, Span),
    /// The frontend has not made all mappings of a loaded state.
    LoadedMissing {
        missing: usize,
        count: usize,
    },
    StateNotLoaded(&'a dyn fmt::Display),
    /// No load begins, for this reason.
    LoadRefused(&'a dyn fmt::Display),
    /// The host cannot do what a request needs.
    Failed {
        what: &'static str,
        why: &'a dyn fmt::Display,
    },
}

/// An event of a context.
#[derive(Clone, Copy)]
pub(in crate::serve) enum ContextEvent<'a> {
    Lost(&'a dyn fmt::Display),
    /// The context is lost because its worker does not read what it is sent, up to this limit.
    Overflow(&'static str),
    /// No worker is started for the context; the reason has a name and words.
    NotStarted {
        kind: &'static str,
        why: &'a str,
    },
    /// The context's worker has not started within this time.
    StartsLate(Duration),
    /// A hand-over is done: `now` says what has become of the context.
    HandedOver {
        now: &'static str,
        pause: Duration,
        total: Duration,
    },
    NotHandedOver {
        done: &'static str,
        reason: &'a str,
    },
    /// A worker that was to take the context over has ended in this way.
    SuccessorEnded(&'a str),
    /// The context has a new worker after the old one has ended in this way.
    Recovered {
        how: &'a str,
        pause: Duration,
    },
    NotRecovered(&'a str),
    /// The GPU memory of the context cannot be kept for a successor, as this limit is reached.
    NotKept(&'static str),
    /// The context wants more GPU memory than all VMs may hold together.
    WantsTooMuch {
        gpu_memory: u64,
    },
    /// The context has waited for GPU memory for this time, which is the limit.
    WaitedForMemory(Duration),
    /// An allocation fails by this limit.
    MemoryRefused(&'static str),
    /// A request fails by this limit, as the worker says.
    LimitReached(&'a str),
    /// A shader is refused for this reason, as the worker says.
    ShaderRefused(&'a str),
    /// A command has waited for a submission that uses its object. One that waits for a blocked submission is refused.
    Overdue {
        command: &'a str,
        is_blocked: bool,
    },
    /// The memory of a resource is not exported for this reason, as the worker says.
    NotExported {
        resource_id: ResourceId,
        reason: &'a str,
    },
    /// A request on the virtqueue is answered with an error.
    RequestRefused {
        command: CommandType,
        error: &'a GuestError,
    },
}

impl DeviceEvent<'_> {
    /// Returns the level of the line, and the kind by which lines are limited.
    pub(super) fn kind(&self) -> (Level, &'static str) {
        match self {
            Self::FrontendConnected => (Level::Info, "frontend connected"),
            Self::FrontendDisconnected => (Level::Info, "frontend disconnected"),
            Self::FrontendRefused(_) => (Level::Error, "frontend refused"),
            Self::SessionFailed(_) => (Level::Error, "session failed"),
            Self::Reset => (Level::Info, "device reset"),
            Self::BrokenQueue(_) => (Level::Warn, "broken queue"),
            Self::ShortRequest => (Level::Warn, "request without header"),
            Self::TableUnchanged(_) => (Level::Warn, "memory table"),
            Self::StateSaved(..) => (Level::Info, "state saved"),
            Self::StateNotSaved(_) => (Level::Error, "state not saved"),
            Self::StateLoaded(..) => (Level::Info, "state loaded"),
            Self::LoadedMapped(..) => (Level::Info, "loaded state mapped"),
            Self::LoadedMissing { .. } => (Level::Error, "loaded state not mapped"),
            Self::StateNotLoaded(_) => (Level::Error, "state not loaded"),
            Self::LoadRefused(_) => (Level::Error, "load refused"),
            Self::Failed { what, .. } => (Level::Warn, what),
        }
    }
}

impl fmt::Display for DeviceEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FrontendConnected => f.write_str("a frontend has connected"),
            Self::FrontendDisconnected => f.write_str("the frontend has disconnected"),
            Self::FrontendRefused(why) => write!(
                f,
                "a frontend is refused: {why} (--max-tasks, TasksMax= and LimitNOFILE= of the unit bound threads and files)"
            ),
            Self::SessionFailed(why) => write!(f, "the session with the frontend has failed: {why}"),
            Self::Reset => f.write_str("the driver has reset the device"),
            Self::BrokenQueue(index) => write!(f, "the driver broke the rules of queue {index}"),
            Self::ShortRequest => f.write_str("a request is shorter than its header"),
            Self::TableUnchanged(time) => write!(
                f,
                "the frontend has mapped or unmapped memory, and has not sent its new memory table within {}: the guest is told of the \
                 change now, and may lose the first bytes that it writes there",
                Span(time)
            ),
            Self::StateSaved(contexts, took) => {
                write!(
                    f,
                    "the state of the GPU is saved for the frontend, with {contexts} contexts, in {took}"
                )
            }
            Self::StateNotSaved(why) => {
                write!(f, "the state of the GPU is not saved, and the VM's programs go on: {why}")
            }
            Self::StateLoaded(contexts, took) => {
                write!(f, "the state of the GPU is loaded, with {contexts} contexts, in {took}")
            }
            Self::LoadedMapped(count, took) => {
                write!(f, "the memory of the loaded state is mapped: {count} mappings, in {took}")
            }
            Self::LoadedMissing { missing, count } => write!(
                f,
                "{missing} of {count} mappings of the loaded state are missing: programs of the guest that use them hang"
            ),
            Self::StateNotLoaded(why) => {
                write!(f, "the state of the GPU is not loaded, and the GPU is as after power-on: {why}")
            }
            Self::LoadRefused(why) => {
                write!(f, "no state of the GPU is loaded, and the GPU stays as it is: {why}")
            }
            Self::Failed { what, why } => write!(f, "{what}: {why}"),
        }
    }
}

impl ContextEvent<'_> {
    /// Returns the level of the line, and the kind by which lines are limited.
    pub(super) fn kind(&self) -> (Level, &'static str) {
        let kind = match self {
            Self::HandedOver { now, .. } => return (Level::Info, now),
            Self::Lost(_) => "context lost",
            Self::Overflow(limit) | Self::NotKept(limit) | Self::MemoryRefused(limit) => limit,
            Self::NotStarted { kind, .. } => kind,
            Self::StartsLate(_) => "worker starts late",
            Self::NotHandedOver { .. } => "context not handed over",
            Self::SuccessorEnded(_) => "successor ended",
            Self::Recovered { .. } => "context recovered",
            Self::NotRecovered(_) => "context not recovered",
            Self::WantsTooMuch { .. } => "gpu-memory",
            Self::WaitedForMemory(_) => "memory-wait",
            Self::LimitReached(_) => "limit of a context",
            Self::ShaderRefused(_) => "shader refused",
            Self::Overdue { .. } => "command overdue",
            Self::NotExported { .. } => "export refused",
            Self::RequestRefused { error, .. } => error.name(),
        };
        (Level::Warn, kind)
    }
}

/// An event, and the context that it is about.
pub(in crate::serve) struct Of<'a>(pub(in crate::serve) ContextId, pub(in crate::serve) ContextEvent<'a>);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ctx_id = self.0;
        match self.1 {
            ContextEvent::Lost(why) => write!(f, "context {ctx_id} is lost: {why}"),
            ContextEvent::Overflow(limit) => {
                write!(f, "context {ctx_id} is lost: limit {limit} reached, its worker is killed")
            }
            ContextEvent::NotStarted { why, .. } => f.write_str(why),
            ContextEvent::StartsLate(time) => write!(
                f,
                "the worker of context {ctx_id} has not started within {}: the host is overloaded, or its GPU driver does not answer; the program \
                 ends if the worker needs a few seconds more",
                Span(time)
            ),
            ContextEvent::HandedOver { now, pause, total } => {
                let (pause, total) = (Span(pause), Span(total));
                write!(f, "context {ctx_id} {now}: it was paused for {pause}, of {total} in all")
            }
            ContextEvent::NotHandedOver { done, reason } => {
                let reason = Quoted(reason);
                write!(f, "context {ctx_id} is not {done}, and stays with its worker: {reason}")
            }
            ContextEvent::SuccessorEnded(how) => {
                write!(f, "the successor of context {ctx_id} took nothing over: {how}")
            }
            ContextEvent::Recovered { how, pause } => {
                let pause = Span(pause);
                write!(f, "context {ctx_id} has a new worker: {how}; its program was paused for {pause}")
            }
            ContextEvent::NotRecovered(why) => write!(f, "context {ctx_id} gets no other worker: {why}"),
            ContextEvent::NotKept(limit) => write!(
                f,
                "limit {limit} reached: context {ctx_id} is lost if its worker dies, because the context has too many allocations of GPU memory"
            ),
            ContextEvent::WantsTooMuch { gpu_memory } => write!(
                f,
                "limit gpu-memory ({gpu_memory} bytes) reached by context {ctx_id}, which wants more than all VMs may hold together: raise gpu-memory"
            ),
            ContextEvent::WaitedForMemory(time) => write!(
                f,
                "limit memory-wait ({}) reached by context {ctx_id}, which waits for GPU memory that others do not give up: raise memory-wait or \
                 gpu-memory, or promise VMs less (device-memory)",
                Span(time)
            ),
            ContextEvent::MemoryRefused(limit) => write!(
                f,
                "limit {limit} reached: an allocation of context {ctx_id} fails; each program gets at most seven eighths of the VM's memory: raise \
                 {limit} if the program needs more"
            ),
            ContextEvent::LimitReached(limit) => {
                write!(f, "limit {} reached: a request of context {ctx_id} fails", Quoted(limit))
            }
            ContextEvent::ShaderRefused(why) => {
                write!(f, "a shader of context {ctx_id} is refused: {}", Quoted(why))
            }
            ContextEvent::Overdue { command, is_blocked: true } => write!(
                f,
                "{} of context {ctx_id} is refused: it waited for 1 s for a submission that uses its object; that submission is itself waiting for a \
                 semaphore or for the scheduler",
                Quoted(command)
            ),
            ContextEvent::Overdue { command, is_blocked: false } => write!(
                f,
                "{} of context {ctx_id} has waited for 1 s for a submission that uses its object, and waits on until that submission has ended",
                Quoted(command)
            ),
            ContextEvent::NotExported { resource_id, reason } => {
                let reason = Quoted(reason);
                write!(f, "resource {resource_id} of context {ctx_id} is not exported: {reason}")
            }
            ContextEvent::RequestRefused { command, error } => {
                write!(f, "{command} of context {ctx_id} refused: {error}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_context_and_the_limit_with_its_remedy() {
        let line = |event| Of(ContextId(3), event).to_string();
        let waited = ContextEvent::WaitedForMemory(Duration::from_secs(30));
        assert_eq!(waited.kind(), (Level::Warn, "memory-wait"));
        assert_eq!(
            line(waited),
            "limit memory-wait (30 s) reached by context 3, which waits for GPU memory that others do not give up: raise memory-wait or gpu-memory, or \
             promise VMs less (device-memory)"
        );
        assert_eq!(
            line(ContextEvent::ShaderRefused("a loop\n")),
            "a shader of context 3 is refused: \"a loop\\n\"",
            "a worker's words are quoted"
        );
    }
}
