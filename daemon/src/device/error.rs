//! This file names the mistakes of a guest, its requests that the host could not meet, and the answers to both.

use protocol::ids::{ContextId, ResourceId, ScanoutId};
use protocol::virtio_gpu::{CommandError, ResponseType};

/// The reason why a command is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GuestError {
    /// The bytes are no command.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// There is no such context, or the command names none.
    #[error("unknown context")]
    UnknownContext,
    /// The context cannot do this: it has no worker.
    #[error("context {0} has no capability set")]
    ShellContext(ContextId),
    /// The context exists already.
    #[error("context {0} exists")]
    ContextExists(ContextId),
    /// The context is lost: its worker ended or gave up.
    #[error("context {0} is lost")]
    ContextLost(ContextId),
    /// There is no such resource.
    #[error("unknown resource {0}")]
    UnknownResource(ResourceId),
    /// The resource exists already.
    #[error("resource {0} exists")]
    ResourceExists(ResourceId),
    /// There is no such scanout.
    #[error("unknown scanout {0}")]
    UnknownScanout(ScanoutId),
    /// The command has a value that makes no sense here.
    #[error("invalid {0}")]
    Invalid(&'static str),
    /// A limit of the device is reached, named as users know it: by the option that sets it, or by its own name if it is fixed.
    #[error("limit {0} reached")]
    Limit(&'static str),
    /// The host could not carry the command out.
    #[error("the host could not do it")]
    Host,
}

/// An effect could not take place; the performer of effects has logged the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EffectFailed;

impl From<EffectFailed> for GuestError {
    fn from(_: EffectFailed) -> Self {
        Self::Host
    }
}

impl GuestError {
    /// Returns the answer on the wire.
    pub(crate) fn response(&self) -> ResponseType {
        match self {
            Self::Command(error) => error.response(),
            Self::UnknownContext | Self::ShellContext(_) | Self::ContextExists(_) => {
                ResponseType::ERR_INVALID_CONTEXT_ID
            }
            Self::UnknownResource(_) | Self::ResourceExists(_) => ResponseType::ERR_INVALID_RESOURCE_ID,
            Self::UnknownScanout(_) => ResponseType::ERR_INVALID_SCANOUT_ID,
            Self::Invalid(_) => ResponseType::ERR_INVALID_PARAMETER,
            Self::Limit(_) => ResponseType::ERR_OUT_OF_MEMORY,
            Self::ContextLost(_) | Self::Host => ResponseType::ERR_UNSPEC,
        }
    }

    /// Returns the name under which log lines are limited: the kind of error without its details.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Command(CommandError::OverLimit(name)) | Self::Limit(name) => name,
            Self::Command(_) => "command",
            Self::UnknownContext => "unknown context",
            Self::ShellContext(_) => "context without capability set",
            Self::ContextExists(_) => "context exists",
            Self::ContextLost(_) => "context lost",
            Self::UnknownResource(_) => "unknown resource",
            Self::ResourceExists(_) => "resource exists",
            Self::UnknownScanout(_) => "unknown scanout",
            Self::Invalid(name) => name,
            Self::Host => "host",
        }
    }
}
