//! The causes that end a context, grouped by the party at fault.
//!
//! A cause names rules, objects, limits and results, never the content of a guest's bytes.

use ash::vk;
use config::AtFault;
use outside::{Bytes, Span};
use protocol::error::{DecodeError, DecodeErrorKind, Overflow};
use protocol::ids::ResourceId;
use protocol::venus::generated::ObjectType;
use protocol::venus::ring::RingError;
use std::fmt;
use std::time::Duration;

/// The cause that ends a context.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The stream breaks a rule of the protocol.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A limit is reached.
    #[error(transparent)]
    Limit(#[from] Limit),
    /// The host's driver fails.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The host lacks a resource, or refuses a request.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The worker that had the context before has written data that cannot be taken over.
    #[error(transparent)]
    Inherited(#[from] InheritedError),
    /// This program breaks a rule of its own: a message that must not reach a worker, or a bug.
    #[error("{0}")]
    Daemon(&'static str),
    /// A submission names an object whose creation failed with this `VkResult`, which is legal, and the guest has no fence that could tell.
    #[error("a submission names an object whose creation failed ({})", words(*.0))]
    Unmade(i32),
    /// The context or the ring has ended already, and its wait has ended too. The reason was told before.
    #[error("it has ended")]
    Ended,
}

impl Cause {
    /// Returns the party that is at fault; none if the cause's message says enough.
    pub fn at_fault(&self) -> Option<AtFault> {
        match self {
            Self::Stream(error) => (!error.is_limit()).then_some(AtFault::Guest),
            Self::Driver(_) => Some(AtFault::Driver),
            Self::Host(_) => Some(AtFault::Host),
            Self::Inherited(error) => error.at_fault(),
            Self::Daemon(_) => Some(AtFault::Daemon),
            Self::Limit(_) | Self::Unmade(_) | Self::Ended => None,
        }
    }
}

/// A rule of the protocol that a stream breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The bytes are no command.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A ring is not laid out as it has to be.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A reply does not fit into its window.
    #[error("reply: {0}")]
    Reply(#[from] Overflow),
    /// A command lacks a required part, such as its description or an id.
    #[error("without {0}")]
    Without(&'static str),
    /// A transport command where only commands of the host's driver belong, or the other way round.
    #[error("{0} has no place here")]
    Misplaced(&'static str),
    /// The guest sends a command that the device did not offer: the host's driver has no function for it.
    #[error("{0} is not offered by this device")]
    NotOffered(&'static str),
    /// No object has the id.
    #[error("object {id} does not exist; an object of kind {} is expected", wanted.0)]
    NoObject {
        /// The id in the command.
        id: u64,
        /// The kind that the command is about.
        wanted: ObjectType,
    },
    /// The object of the id is of another kind.
    #[error("object {id} is of kind {}, but kind {} is expected", found.0, wanted.0)]
    OtherKind {
        /// The id in the command.
        id: u64,
        /// The kind of the object.
        found: ObjectType,
        /// The kind that the command is about.
        wanted: ObjectType,
    },
    /// A command gives a new object the id of another object.
    #[error("object id {0} is in use already")]
    IdInUse(u64),
    /// No ring has the id.
    #[error("no such ring")]
    NoRing,
    /// The context does not see the resource.
    #[error("resource {0} is not attached")]
    NotAttached(ResourceId),
    /// The resource is memory of the driver.
    #[error("resource {0} is not shared memory")]
    NotShared(ResourceId),
    /// A range does not lie within the bounds that it has to.
    #[error("{0} outside {1}")]
    Outside(&'static str, &'static str),
    /// Another rule.
    #[error("{0}")]
    Rule(&'static str),
}

impl StreamError {
    /// Returns whether the stream keeps all rules and only exceeds a limit of ours.
    fn is_limit(&self) -> bool {
        let Self::Decode(DecodeError { kind, .. }) = self else { return false };
        matches!(kind, DecodeErrorKind::ArenaFull | DecodeErrorKind::OutBudget | DecodeErrorKind::ChainLength)
    }
}

/// A limit that a context has reached, with its value: one of `config::ContextLimits`, or another that ends a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Limit {
    /// Rings alive at once.
    Rings(usize),
    /// Objects alive at once.
    Objects(usize),
    /// Objects alive at once, and as many whose creation failed.
    FailedObjects(usize),
    /// Bytes of shaders and descriptions of live objects.
    ShaderMemory(u64),
    /// Destroyed objects that are in use.
    Retired(usize),
    /// Submissions of a queue that are not complete.
    Submissions(usize),
    /// Bytes of the commands that are copied.
    CommandBytes(usize),
    /// Bytes of the commands that are decoded.
    ArenaBytes(usize),
    /// Bytes of the recordings that are kept so that the context can be moved.
    RecordingBytes(usize),
    /// Messages that wait behind a command of the virtqueue which waits for a ring.
    Messages(usize),
    /// The time that the driver may take to create pipelines.
    PipelineTime(Duration),
    /// Memory that a worker may have of its own.
    WorkerData,
}

impl Limit {
    /// Returns the name that users know: the option that sets the limit, or the limit's own if it is fixed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rings(_) => "max-rings",
            Self::Objects(_) | Self::FailedObjects(_) => "max-objects",
            Self::ShaderMemory(_) => "shader-memory",
            Self::Retired(_) => "retired",
            Self::Submissions(_) => "submissions",
            Self::CommandBytes(_) => "command_bytes",
            Self::ArenaBytes(_) => "arena_bytes",
            Self::RecordingBytes(_) => "recording_bytes",
            Self::Messages(_) => "messages",
            Self::PipelineTime(_) => "max-pipeline-time",
            Self::WorkerData => "max-worker-data",
        }
    }

    /// Returns the resource that was used up, if the limit's name does not say it, and the remedy.
    fn advice(self) -> &'static str {
        match self {
            Self::Rings(_) | Self::Objects(_) | Self::ShaderMemory(_) => "; raise it if programs need more",
            Self::FailedObjects(_) => " by objects that could not be made; raise it if programs need more",
            Self::Retired(_) => " by destroyed objects that are in use; it is fixed",
            Self::Submissions(_) => " by submissions of one queue; it is fixed",
            Self::Messages(_) => " by messages behind a wait for a ring; it is fixed",
            Self::CommandBytes(_) | Self::ArenaBytes(_) | Self::RecordingBytes(_) => "; it is fixed",
            Self::PipelineTime(_) => {
                ": the driver took longer to create pipelines; raise it if programs need more"
            }
            Self::WorkerData => {
                ": the driver took nearly all memory that a worker may have of its own; raise it, or have the program compile less at once"
            }
        }
    }
}

/// The text begins with "limit NAME", as every message about a limit does.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit {} ", self.name())?;
        match *self {
            Self::Rings(count)
            | Self::Objects(count)
            | Self::FailedObjects(count)
            | Self::Retired(count)
            | Self::Submissions(count)
            | Self::Messages(count) => write!(f, "({count}) ")?,
            Self::CommandBytes(bytes) | Self::ArenaBytes(bytes) | Self::RecordingBytes(bytes) => {
                write!(f, "({}) ", Bytes(bytes as u64))?;
            }
            Self::ShaderMemory(bytes) => write!(f, "({}) ", Bytes(bytes))?,
            Self::PipelineTime(time) => write!(f, "({}) ", Span(time))?,
            Self::WorkerData => {}
        }
        write!(f, "reached{}", self.advice())
    }
}

/// A failure of the host's driver that ends a context.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// There is no loader.
    #[error("cannot load the Vulkan loader: {0}")]
    NoLoader(String),
    /// No driver makes an instance.
    #[error("no Vulkan driver makes an instance: {0}")]
    NoAnswer(vk::Result),
    /// The drivers do not list the GPUs.
    #[error("the Vulkan drivers report no device: {0}")]
    NoList(vk::Result),
    /// A call that has to succeed has failed.
    #[error("{what}: {}", words(*result))]
    Fails {
        /// The operation that fails, in words.
        what: &'static str,
        /// The `VkResult`.
        result: i32,
    },
    /// The device was lost.
    #[error("the device was lost")]
    DeviceLost,
    /// The driver lists the GPU no more.
    #[error("the GPU chosen at start-up is gone")]
    NoGpu,
}

/// A resource that the host lacks, or a request that it refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The system refuses a request, and says why.
    #[error("{what}: {why}")]
    Refused {
        /// The operation that fails, in words of ours.
        what: &'static str,
        /// The system's words.
        why: String,
    },
    /// The system refuses memory for the contents of a context that is swapped out, and says why.
    #[error("the system refuses {} of memory for the context's contents ({why}): max-worker-data may be too low", Bytes(*bytes))]
    NoMemory {
        /// Bytes of all contents.
        bytes: u64,
        /// The system's words.
        why: String,
    },
    /// Other programs use the memory that the contents of a context were to have.
    #[error(
        "the host has no memory to spare, and holds {} of {} of the context's contents: stop other programs of the host",
        Bytes(*held),
        Bytes(*of)
    )]
    NoneToSpare {
        /// Bytes that have arrived.
        held: u64,
        /// Bytes of all contents.
        of: u64,
    },
}

impl DriverError {
    /// The error of a call that has to succeed and fails.
    pub fn fails(what: &'static str, why: vk::Result) -> Self {
        Self::Fails { what, result: why.as_raw() }
    }
}

impl HostError {
    /// The error of a request that the system refuses for the reason `why`.
    pub fn refused(what: &'static str, why: impl fmt::Display) -> Self {
        Self::Refused { what, why: why.to_string() }
    }
}

/// An error in the data that a predecessor has written, which cannot be taken over. The data may have been written with malice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InheritedError {
    /// The link to the other worker fails, for a reason that may be that worker's fault or not; in words of ours.
    #[error("{0}")]
    Link(String),
    /// The bytes cannot be read; in words of ours.
    #[error("{0}")]
    Unreadable(String),
    /// The written stream breaks a rule of the protocol.
    #[error(transparent)]
    Stream(StreamError),
    /// The written data makes no sense, or its parts do not belong together.
    #[error("{0}")]
    Broken(&'static str),
    /// An object has a fault.
    #[error("{kind} {id} {is}")]
    Object {
        /// The kind of object, in words.
        kind: &'static str,
        /// The id in the guest.
        id: u64,
        /// The fault of the object, after its id.
        is: &'static str,
    },
    /// The host has another driver than before, or less memory.
    #[error("{0}")]
    Lacking(&'static str),
    /// The driver gives a buffer another address.
    #[error("buffer {0} gets another address than it had")]
    OtherAddress(u64),
    /// An object existed before and cannot be made again.
    #[error("object {id} of kind {} could not be made again", kind.0)]
    NotMade {
        /// The id in the guest.
        id: u64,
        /// The kind of object.
        kind: ObjectType,
    },
    /// A property of the GPU is not as it was.
    #[error("the GPU is unlike the one before: its {0} differ")]
    OtherGpu(&'static str),
    /// A journal contains a command that no successor can repeat.
    #[error("a journal cannot be replayed: {0}")]
    Unrepeatable(&'static str),
    /// A call fails that did not fail before.
    #[error("{what}: {}", words(*result))]
    Fails {
        /// The operation that fails, in words.
        what: &'static str,
        /// The `VkResult`.
        result: i32,
    },
}

impl InheritedError {
    /// Returns the predecessor if it has written wrong data; none if it could not know better.
    fn at_fault(&self) -> Option<AtFault> {
        let is_wrong = match self {
            Self::Stream(error) => !error.is_limit(),
            Self::Unreadable(_) | Self::Broken(_) | Self::Object { .. } | Self::Unrepeatable(_) => true,
            Self::Link(_) | Self::Lacking(_) | Self::OtherAddress(_) => false,
            Self::NotMade { .. } | Self::OtherGpu(_) | Self::Fails { .. } => false,
        };
        is_wrong.then_some(AtFault::Predecessor)
    }
}

impl From<DecodeError> for Cause {
    fn from(error: DecodeError) -> Self {
        Self::Stream(error.into())
    }
}

impl From<RingError> for Cause {
    fn from(error: RingError) -> Self {
        Self::Stream(error.into())
    }
}

impl From<Overflow> for Cause {
    fn from(error: Overflow) -> Self {
        Self::Stream(error.into())
    }
}

/// A `VkResult` in words.
fn words(result: i32) -> vk::Result {
    vk::Result::from_raw(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_party_is_blamed_for_its_own_faults_and_none_for_limits() {
        let inherited = |error: InheritedError| Cause::from(error);
        let full = DecodeError { what: "Test", offset: 8, kind: DecodeErrorKind::ArenaFull };
        let cases = [
            (StreamError::NoRing.into(), Some(AtFault::Guest)),
            (RingError::OutsideResource.into(), Some(AtFault::Guest)),
            (full.into(), None),
            (Limit::Submissions(7).into(), None),
            (DriverError::DeviceLost.into(), Some(AtFault::Driver)),
            (HostError::refused("no thread", "none").into(), Some(AtFault::Host)),
            (inherited(InheritedError::Broken("no snapshot")), Some(AtFault::Predecessor)),
            (inherited(InheritedError::Stream(StreamError::NoRing)), Some(AtFault::Predecessor)),
            (inherited(InheritedError::Stream(full.into())), None),
            (inherited(InheritedError::OtherAddress(7)), None),
            (Cause::Daemon("a second set-up"), Some(AtFault::Daemon)),
            (Cause::Unmade(-2), None),
        ];
        for (cause, at_fault) in cases {
            assert_eq!(cause.at_fault(), at_fault, "{cause}");
        }
    }

    #[test]
    fn a_limit_is_told_with_its_value_and_the_remedy() {
        let fixed = Limit::CommandBytes(256 << 20).to_string();
        assert_eq!(fixed, "limit command_bytes (256.0MiB) reached; it is fixed");
        let option = Limit::PipelineTime(Duration::from_secs(300)).to_string();
        assert_eq!(
            option,
            "limit max-pipeline-time (5 min) reached: the driver took longer to create pipelines; raise it if programs need more"
        );
    }
}
