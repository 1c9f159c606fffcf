//! This file finds requests that fail because a context is lost or was refused. They say nothing new: the log has a line about that context. A
//! guest's kernel looks at few answers, so it goes on with requests for the context, and for resources that it believes it has made.

use crate::device::GuestError;
use protocol::ids::ContextId;
use protocol::virtio_gpu::{CommandType, Header};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Refused contexts for which the guest may still make requests, at most; beyond that, the oldest are forgotten.
const REFUSED_MAX: usize = 256;
/// Time after such a request in which requests for unknown resources count as its consequence.
const FOLLOWS: Duration = Duration::from_secs(10);

/// The contexts that the guest was told do not exist, and the time of its last request for one.
#[derive(Debug, Default)]
pub(in crate::serve) struct Aftermath {
    refused: VecDeque<ContextId>,
    last: Option<Instant>,
}

impl Aftermath {
    /// A context got no worker, and the log says why.
    pub(in crate::serve) fn refused(&mut self, ctx_id: ContextId) {
        self.begins(ctx_id);
        self.refused.truncate(REFUSED_MAX - 1);
        self.refused.push_front(ctx_id);
    }

    /// A context has a worker.
    pub(in crate::serve) fn begins(&mut self, ctx_id: ContextId) {
        self.refused.retain(|other| *other != ctx_id);
    }

    /// Returns whether a request failed for a reason that the log has already.
    pub(in crate::serve) fn explains(&mut self, header: &Header, error: &GuestError, now: Instant) -> bool {
        let explained = match error {
            // The performer of the effect has logged the reason.
            GuestError::ContextLost(_) | GuestError::Host => true,
            GuestError::UnknownContext => {
                header.context().is_some_and(|ctx_id| self.refused.contains(&ctx_id))
            }
            GuestError::UnknownResource(_) => {
                return self.last.is_some_and(|last| now.saturating_duration_since(last) < FOLLOWS);
            }
            _ => false,
        };
        if explained {
            self.last = Some(now);
        }
        if header.command == CommandType::CTX_DESTROY
            && let Some(ctx_id) = header.context()
        {
            self.begins(ctx_id);
        }
        explained
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::ids::{FenceId, ResourceId, RingIdx};
    use protocol::virtio_gpu::HeaderFlags;

    fn header(command: CommandType, ctx_id: u32) -> Header {
        let (flags, fence_id, ring_idx) = (HeaderFlags::empty(), FenceId(0), RingIdx(0));
        Header { command, flags, fence_id, ctx_id, ring_idx }
    }

    const UNKNOWN: GuestError = GuestError::UnknownResource(ResourceId(7));

    #[test]
    fn what_follows_from_a_lost_context_is_explained_and_nothing_else() {
        let (mut aftermath, now) = (Aftermath::default(), Instant::now());
        let create = header(CommandType::RESOURCE_CREATE_BLOB, 3);
        assert!(!aftermath.explains(&create, &UNKNOWN, now));
        assert!(!aftermath.explains(&create, &GuestError::Limit("resources"), now));
        assert!(!aftermath.explains(&create, &GuestError::UnknownContext, now));
        for error in [GuestError::ContextLost(ContextId(3)), GuestError::Host] {
            assert!(aftermath.explains(&create, &error, now));
        }
        assert!(aftermath.explains(&header(CommandType::RESOURCE_MAP_BLOB, 0), &UNKNOWN, now));
        assert!(!aftermath.explains(&create, &GuestError::Limit("resources"), now));
        assert!(!aftermath.explains(&create, &UNKNOWN, now + FOLLOWS), "much later");
    }

    #[test]
    fn what_is_asked_of_a_refused_context_is_explained_until_it_is_destroyed_or_begins() {
        let (mut aftermath, now) = (Aftermath::default(), Instant::now());
        let (submit, destroy) = (header(CommandType::SUBMIT_3D, 3), header(CommandType::CTX_DESTROY, 3));
        aftermath.refused(ContextId(3));
        for explained in [true, false] {
            assert_eq!(aftermath.explains(&submit, &GuestError::UnknownContext, now), explained);
            assert_eq!(aftermath.explains(&destroy, &GuestError::UnknownContext, now), explained);
        }
        aftermath.refused(ContextId(3));
        aftermath.begins(ContextId(3));
        assert!(!aftermath.explains(&submit, &GuestError::UnknownContext, now));
        (0..10_000).for_each(|number| aftermath.refused(ContextId(number)));
        assert_eq!(aftermath.refused.len(), REFUSED_MAX);
        assert!(aftermath.refused.contains(&ContextId(9999)));
    }
}
