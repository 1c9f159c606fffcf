//! The replies of one executor, which go into a window of a shared-memory resource that the driver chooses.

use super::resources::Resources;
use protocol::cursor::Writer;
use protocol::ids::ResourceId;
use serde::{Deserialize, Serialize};
use shm::Mapping;
use shm::journal::Stream;
use std::sync::Arc;
use vulkan::{ContextLost, HostError, InheritedError, StreamError};

/// The reply stream of one executor. Replies are encoded into private memory and then copied into the window at once, never
/// past its end.
#[derive(Debug, Default)]
pub(super) struct ReplyStream {
    window: Option<Window>,
    /// The number of times that a window was chosen.
    changes: u32,
    private: Vec<u8>,
}

#[derive(Debug)]
struct Window {
    resource: ResourceId,
    mapping: Arc<Mapping>,
    offset: u64,
    size: u64,
    position: u64,
}

/// The place of a reply stream, to be found again in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReplyPlace {
    /// The resource; none if the context does not see it any more, so that no program reads the replies.
    pub resource: Option<ResourceId>,
    /// The first byte of the window in the resource.
    pub offset: u64,
    /// Bytes of the window.
    pub size: u64,
    /// The byte of the window at which the next reply begins.
    pub position: u64,
}

impl ReplyStream {
    /// `vkSetReplyCommandStreamMESA`: replies go to these bytes of a resource, from their start.
    pub(super) fn set(
        &mut self,
        resource: ResourceId,
        mapping: Arc<Mapping>,
        offset: u64,
        size: u64,
    ) -> Result<(), ContextLost> {
        if !mapping.contains(offset, size) {
            return Err(outside());
        }
        self.window = Some(Window { resource, mapping, offset, size, position: 0 });
        self.changes = self.changes.wrapping_add(1);
        Ok(())
    }

    /// Returns a number that changes with each [`Self::set`].
    #[inline]
    pub(super) fn changes(&self) -> u32 {
        self.changes
    }

    /// Returns the byte of the window at which the next reply begins; 0 without a window.
    #[inline]
    pub(super) fn position(&self) -> u64 {
        self.window.as_ref().map_or(0, |window| window.position)
    }

    /// Returns the window that was chosen last, whose resource the context saw then.
    pub(super) fn stream(&self) -> Option<Stream> {
        let Window { resource, offset, size, .. } = self.window.as_ref()?;
        Some(Stream { resource: Some(resource.0), offset: *offset, size: *size })
    }

    /// Returns the place of the stream, if it was set.
    pub(super) fn place(&self, resources: &Resources) -> Option<ReplyPlace> {
        let Window { resource, mapping, offset, size, position } = self.window.as_ref()?;
        let attached = resources.shared_memory(resource.0);
        let is_seen = attached.is_ok_and(|attached| Arc::ptr_eq(&attached, mapping));
        let resource = is_seen.then_some(*resource);
        Some(ReplyPlace { resource, offset: *offset, size: *size, position: *position })
    }

    /// Returns the stream at a place.
    ///
    /// # Errors
    ///
    /// There is no such place.
    pub(super) fn at(place: Option<ReplyPlace>, resources: &Resources) -> Result<Self, ContextLost> {
        let mut stream = Self::default();
        if let Some(ReplyPlace { resource, offset, size, position }) = place {
            match resource {
                Some(resource) => stream.set(resource, resources.shared_memory(resource.0)?, offset, size)?,
                None => stream.set(NOBODYS, unread(size)?, 0, size)?,
            }
            stream.seek(position)?;
        }
        Ok(stream)
    }

    /// `vkSeekReplyCommandStreamMESA`: the next reply goes to this position of the window.
    pub(super) fn seek(&mut self, position: u64) -> Result<(), ContextLost> {
        match &mut self.window {
            Some(window) if position <= window.size => window.position = position,
            _ => return Err(StreamError::Outside("seek", "the reply stream").into()),
        }
        Ok(())
    }

    /// Returns the bytes left for replies, at most the longest reply.
    pub(super) fn room(&self) -> usize {
        self.window.as_ref().map_or(0, |window| (window.size - window.position).min(ROOM_MAX) as usize)
    }

    /// Lets `command` write one reply and delivers it.
    pub(super) fn deliver(
        &mut self,
        command: impl FnOnce(&mut Writer<'_>) -> Result<(), ContextLost>,
    ) -> Result<(), ContextLost> {
        let room = self.room();
        let Some(window) = &mut self.window else {
            return Err(ContextLost::rule("reply wanted without a reply stream"));
        };
        if self.private.len() < room {
            // Pages fresh from the system are zero already and cost nothing until they are used.
            self.private = vec![0; room.next_power_of_two().max(4096)];
        }
        let mut writer = Writer::window(&mut self.private[..room]);
        command(&mut writer)?;
        let written = writer.finish()?;
        let copied = window.mapping.copy_in(window.offset + window.position, &self.private[..written]);
        copied.map_err(|_| outside())?;
        window.position += written as u64;
        if written > PRIVATE_KEPT {
            self.private = Vec::new();
        }
        Ok(())
    }
}

fn outside() -> ContextLost {
    ContextLost::from(StreamError::Outside("reply stream", "its resource"))
}

/// Returns memory of `size` bytes for replies that no program reads.
fn unread(size: u64) -> Result<Arc<Mapping>, ContextLost> {
    if size > UNREAD_MAX {
        return Err(InheritedError::Broken("a large reply stream whose resource is gone").into());
    }
    let failed =
        |error: &dyn std::fmt::Display| ContextLost::from(HostError::refused("no memory for replies", error));
    let bytes = size.max(4096);
    let file = shm::create("replies", bytes).map_err(|error| failed(&error))?;
    Ok(Arc::new(Mapping::new(&file, bytes).map_err(|error| failed(&error))?))
}

/// No resource has this id.
const NOBODYS: ResourceId = ResourceId(0);

/// The most bytes of a window in memory that the context no longer sees, if a successor is to replace it: drivers have windows of a megabyte.
pub(super) const UNREAD_MAX: u64 = 64 << 20;

/// Private memory is freed after a reply longer than this.
const PRIVATE_KEPT: usize = 1 << 20;

/// No reply is longer than this, however large its window.
const ROOM_MAX: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use shm::testing::private;

    fn bytes(mapping: &Mapping, offset: u64) -> [u8; 16] {
        let mut bytes = [0; 16];
        mapping.copy_out(offset, &mut bytes).unwrap();
        bytes
    }

    fn reply(stream: &mut ReplyStream, bytes: &[u8]) -> Result<(), ContextLost> {
        stream.deliver(|writer| {
            writer.raw(bytes);
            Ok(())
        })
    }

    #[test]
    fn replies_follow_each_other_and_seek_moves_them() {
        let pages = private(4096);
        let mut stream = ReplyStream::default();
        stream.set(ResourceId(7), Arc::clone(&pages), 100, 16).unwrap();
        reply(&mut stream, b"one_").unwrap();
        reply(&mut stream, b"two_").unwrap();
        stream.seek(12).unwrap();
        reply(&mut stream, b"end_").unwrap();
        assert_eq!(&bytes(&pages, 100), b"one_two_\0\0\0\0end_");
    }

    #[test]
    fn a_reply_that_does_not_fit_writes_nothing() {
        let pages = private(4096);
        let mut stream = ReplyStream::default();
        stream.set(ResourceId(7), Arc::clone(&pages), 100, 12).unwrap();
        assert!(reply(&mut stream, &[0xff; 13]).is_err());
        reply(&mut stream, &[1; 8]).unwrap();
        assert_eq!(stream.room(), 4);
        assert!(reply(&mut stream, &[0xff; 5]).is_err());
        assert_eq!(&bytes(&pages, 100), &[1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn windows_outside_the_resource_and_replies_without_window_are_refused() {
        let pages = private(4096);
        let mut stream = ReplyStream::default();
        assert!(reply(&mut stream, &[]).is_err());
        assert!(stream.seek(0).is_err());
        for (offset, size) in [(0, 4097), (4096, 1), (u64::MAX, 1), (8, u64::MAX)] {
            assert!(stream.set(ResourceId(7), Arc::clone(&pages), offset, size).is_err());
        }
        stream.set(ResourceId(7), pages, 0, 4096).unwrap();
        assert!(stream.seek(4097).is_err());
        stream.seek(4096).unwrap();
        assert!(reply(&mut stream, &[0]).is_err());
    }

    #[test]
    fn a_stream_is_found_again_where_it_was_and_goes_nowhere_when_its_resource_is_gone() {
        let (resources, file) = (Resources::default(), shm::create("test", 4096).unwrap());
        let attach = |id, number| {
            let what = super::super::resources::Arriving::Shared(file.try_clone().unwrap());
            resources.attach(ResourceId(id), what, 4096, number).unwrap();
        };
        attach(5, 1);
        assert_eq!(ReplyStream::default().place(&resources), None);
        let mut stream = ReplyStream::default();
        stream.set(ResourceId(5), resources.shared_memory(5).unwrap(), 100, 64).unwrap();
        reply(&mut stream, b"one_").unwrap();
        let place = stream.place(&resources);
        assert_eq!(
            place,
            Some(ReplyPlace { resource: Some(ResourceId(5)), offset: 100, size: 64, position: 4 })
        );
        let mut again = ReplyStream::at(place, &resources).unwrap();
        reply(&mut again, b"two_").unwrap();
        assert_eq!(&bytes(&resources.shared_memory(5).unwrap(), 100)[..8], b"one_two_");
        // The replies do not go to another resource of the same id.
        attach(5, 2);
        let gone = stream.place(&resources).unwrap();
        assert_eq!(gone.resource, None);
        let mut unread = ReplyStream::at(Some(gone), &resources).unwrap();
        reply(&mut unread, b"gone").unwrap();
        assert_eq!((unread.room(), unread.place(&resources).unwrap().resource), (56, None));
        for place in [
            ReplyPlace { size: UNREAD_MAX + 1, ..gone },
            ReplyPlace { position: 65, ..gone },
            ReplyPlace { resource: Some(ResourceId(6)), ..gone },
            ReplyPlace { resource: Some(ResourceId(5)), offset: u64::MAX, ..gone },
        ] {
            assert!(ReplyStream::at(Some(place), &resources).is_err(), "{place:?}");
        }
    }
}
