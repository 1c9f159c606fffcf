//! The replies of one executor go into a window of a shared-memory resource, chosen by the driver.

use protocol::cursor::Writer;
use shm::Mapping;
use std::sync::Arc;
use vulkan::ContextLost;

/// The reply stream of one executor. Replies are encoded into private memory and then copied into the window at once, never
/// past its end.
#[derive(Debug, Default)]
pub(super) struct ReplyStream {
    window: Option<Window>,
    private: Vec<u8>,
}

#[derive(Debug)]
struct Window {
    mapping: Arc<Mapping>,
    offset: u64,
    size: u64,
    position: u64,
}

impl ReplyStream {
    /// `vkSetReplyCommandStreamMESA`: replies go to these bytes of a resource, from their start.
    pub(super) fn set(&mut self, mapping: Arc<Mapping>, offset: u64, size: u64) -> Result<(), ContextLost> {
        if !mapping.contains(offset, size) {
            return Err(ContextLost::new("reply stream outside its resource"));
        }
        self.window = Some(Window { mapping, offset, size, position: 0 });
        Ok(())
    }

    /// `vkSeekReplyCommandStreamMESA`: the next reply goes to this position of the window.
    pub(super) fn seek(&mut self, position: u64) -> Result<(), ContextLost> {
        match &mut self.window {
            Some(window) if position <= window.size => window.position = position,
            _ => return Err(ContextLost::new("seek outside the reply stream")),
        }
        Ok(())
    }

    /// Bytes left for replies, capped to what a reply may ever take.
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
            return Err(ContextLost::new("reply wanted without a reply stream"));
        };
        if self.private.len() < room {
            // Pages fresh from the system are zero already and cost nothing until they are used.
            self.private = vec![0; room.next_power_of_two().max(4096)];
        }
        let mut writer = Writer::window(&mut self.private[..room]);
        command(&mut writer)?;
        let written = writer.finish().map_err(|error| ContextLost::new(format!("reply: {error}")))?;
        let outside = |_| ContextLost::new("reply stream outside its resource");
        window.mapping.copy_in(window.offset + window.position, &self.private[..written]).map_err(outside)?;
        window.position += written as u64;
        if written > PRIVATE_KEPT {
            self.private = Vec::new();
        }
        Ok(())
    }
}

/// Private memory is given back after a reply longer than this.
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
        stream.set(Arc::clone(&pages), 100, 16).unwrap();
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
        stream.set(Arc::clone(&pages), 100, 12).unwrap();
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
            assert!(stream.set(Arc::clone(&pages), offset, size).is_err());
        }
        stream.set(pages, 0, 4096).unwrap();
        assert!(stream.seek(4097).is_err());
        stream.seek(4096).unwrap();
        assert!(reply(&mut stream, &[0]).is_err());
    }
}
