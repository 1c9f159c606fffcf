//! This file names why a session with a frontend ends or cannot begin.

use outside::Span;
use vhost::vhost_user::Error;

/// The reason why a session cannot go on or could not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The frontend broke the protocol, or the connection broke.
    #[error("vhost-user: {0}")]
    Protocol(#[from] Error),
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The frontend offers no way to map memory into the guest.
    #[error("the frontend has no shared-memory channel (BACKEND_REQ and SHMEM)")]
    NoWindow,
    /// The frontend has answered that it does not meet the request.
    #[error("the frontend refuses the request")]
    Refused,
    /// The frontend's message is no answer to the request.
    #[error("the frontend's answer is malformed")]
    NoAnswer,
    /// The frontend has not answered.
    #[error("limit frontend-timeout ({0}) reached: the frontend does not answer")]
    Silent(Span),
    /// The frontend has stopped the device, and is sent no requests until the device goes on.
    #[error("the frontend has stopped the device")]
    Stopped,
    /// The frontend is gone, so it will not meet the request.
    #[error("the frontend is gone")]
    Gone,
}

impl SessionError {
    /// Returns whether the frontend has merely disconnected.
    pub(crate) fn is_disconnection(&self) -> bool {
        matches!(self, Self::Protocol(Error::Disconnected | Error::PartialMessage | Error::SocketBroken(_)))
    }

    /// Returns whether the system has refused a resource, such as a thread, a descriptor or a mapping.
    pub(crate) fn is_of_system(&self) -> bool {
        match self {
            Self::Protocol(Error::ReqHandlerError(_)) => true,
            Self::Io(error) | Self::Protocol(Error::SocketError(error) | Error::SocketRetry(error)) => {
                error.raw_os_error().is_some()
            }
            _ => false,
        }
    }

    /// Returns whether the frontend has answered that it does not meet the request, or was not asked at all.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused | Self::Stopped)
    }
}
