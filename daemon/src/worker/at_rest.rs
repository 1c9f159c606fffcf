//! Executors and rings at rest: the state from which another process goes on.

use super::inbox::Letter;
use super::reply::{ReplyPlace, ReplyStream};
use super::resources::Resources;
use crate::ipc::{Fence, ToWorker};
use parking_lot::Mutex;
use protocol::ids::{BlobId, ResourceId};
use rustc_hash::FxHashSet;
use rustix::io::{Errno, pread};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vulkan::snapshot::NotMovable;
use vulkan::{ContextLost, HostError, InheritedError, Limit};

/// An executor between two commands, from which another executor goes on.
#[derive(Debug, Default)]
pub(super) struct Begin {
    /// The reply stream.
    pub reply: ReplyStream,
    /// The number of executed bytes of the streams that the next command names.
    pub begun: Option<usize>,
}

/// An executor at rest, as another process finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AtRest {
    /// The place of its reply stream.
    pub reply: Option<ReplyPlace>,
    /// The number of executed bytes of the streams that the next command names; none if that command has not begun.
    pub begun: Option<u64>,
}

impl AtRest {
    /// Returns the state with which an executor in this process goes on in its place.
    ///
    /// # Errors
    ///
    /// There is no such reply stream.
    pub(super) fn begin(&self, resources: &Resources) -> Result<Begin, ContextLost> {
        let begun = self.begun.map(usize::try_from).transpose();
        let begun = begun.map_err(|_| InheritedError::Broken("a stream of an impossible length"))?;
        Ok(Begin { reply: ReplyStream::at(self.reply, resources)?, begun })
    }
}

/// A ring at rest, as another process finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RingAtRest {
    /// The driver's id of the ring.
    pub id: u64,
    /// The `vkCreateRingMESA` that made it, as it was encoded.
    pub created_by: Vec<u8>,
    /// Everything before this position is executed.
    pub head: u32,
    /// The position of the virtqueue's stream, as far as the ring was told.
    pub virtqueue_seqno: u64,
    /// The state of its executor.
    pub executor: AtRest,
}

/// A message that a worker was sent and has not executed, as another process finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Left {
    /// A submission on the virtqueue.
    Submission {
        /// The stream, from the first command that is not executed.
        bytes: Vec<u8>,
        /// The fence that passes behind the stream.
        fence: Option<Fence>,
    },
    /// An export.
    Export {
        /// The new resource.
        resource_id: ResourceId,
        /// The memory.
        blob_id: BlobId,
        /// Bytes that the guest will map.
        size: u64,
        /// The guest wants to map it.
        mappable: bool,
    },
}

/// The messages that are left, at most.
pub(super) const LEFT_MAX: usize = 65_536;

/// The bytes of submissions that are handed over, at most.
const LEFT_BYTES_MAX: usize = 64 << 20;

impl Left {
    /// Returns the part of these messages that a successor is given. The context no longer sees the resources that the messages detach, so no
    /// submission may name one of them. A submission in a file has at most `bytes_max` bytes.
    ///
    /// # Errors
    ///
    /// The messages have too many bytes, are of other kinds, or name a detached resource.
    pub(super) fn of<'l>(
        letters: impl IntoIterator<Item = &'l Letter>,
        bytes_max: usize,
    ) -> Result<Vec<Self>, NotMovable> {
        let (mut all, mut room, mut detached) = (Vec::new(), LEFT_BYTES_MAX, FxHashSet::default());
        for letter in letters {
            match &letter.message {
                ToWorker::Submit { size, inline, fence } => {
                    let left = room.checked_sub(*size as usize);
                    let too_much = "its worker waits for a ring, and the guest has submitted too much since";
                    room = left.ok_or_else(|| NotMovable::for_now(too_much))?;
                    let bytes = payload(*size, inline, letter.fd.as_ref(), bytes_max);
                    let bytes = bytes.map_err(|lost| NotMovable::for_now(lost.to_string()))?;
                    all.push(Self::Submission { bytes: bytes.into_owned(), fence: *fence });
                }
                ToWorker::ExportBlob { resource_id, blob_id, size, mappable } => {
                    let (resource_id, blob_id, size, mappable) = (*resource_id, *blob_id, *size, *mappable);
                    all.push(Self::Export { resource_id, blob_id, size, mappable });
                }
                ToWorker::DetachResource { resource_id } => _ = detached.insert(resource_id.0),
                _ => {
                    return Err(NotMovable::for_now(
                        "its worker waits for a ring, and has since got messages that cannot be handed over",
                    ));
                }
            }
        }
        match all.iter().any(|left| left.may_name(&detached)) {
            true => Err(NotMovable::for_now("a submission may name a resource that is gone")),
            false => Ok(all),
        }
    }

    /// Returns whether one of the words of a submission is one of these numbers.
    fn may_name(&self, resources: &FxHashSet<u32>) -> bool {
        match self {
            Self::Submission { bytes, .. } if !resources.is_empty() => {
                bytes.as_chunks().0.iter().any(|word| resources.contains(&u32::from_le_bytes(*word)))
            }
            _ => false,
        }
    }

    /// Returns the message.
    pub(super) fn message(self) -> ToWorker {
        match self {
            Self::Submission { bytes, fence } => {
                ToWorker::Submit { size: bytes.len() as u32, inline: bytes, fence }
            }
            Self::Export { resource_id, blob_id, size, mappable } => {
                ToWorker::ExportBlob { resource_id, blob_id, size, mappable }
            }
        }
    }
}

/// Returns the bytes of a submission, in private memory: they came in the packet, or in a file beside it.
///
/// # Errors
///
/// The bytes are more than `limit`, or missing.
pub(super) fn payload<'b>(
    size: u32,
    inline: &'b [u8],
    file: Option<&OwnedFd>,
    limit: usize,
) -> Result<Cow<'b, [u8]>, ContextLost> {
    let size = size as usize;
    if inline.len() == size {
        return Ok(Cow::Borrowed(inline));
    }
    let file = file.ok_or_else(|| ContextLost::daemon("a submission without its payload"))?;
    if size > limit {
        return Err(Limit::CommandBytes(limit).into());
    }
    let mut payload = vec![0; size];
    let mut done = 0;
    while let Some(rest) = payload.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match pread(file, rest, done as u64) {
            Ok(0) => return Err(ContextLost::daemon("a payload whose file is too short")),
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(HostError::refused("payload cannot be read", error).into()),
        }
    }
    Ok(Cow::Owned(payload))
}

/// The state in which the executor of a ring came to rest: the ring's thread writes it, others read it while that thread rests.
pub(super) type Rests = Arc<Mutex<AtRest>>;
