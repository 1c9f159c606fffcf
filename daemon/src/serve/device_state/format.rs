//! The bytes of a device's state.
//!
//! | bytes | content |
//! | --- | --- |
//! | 8 | [`MAGIC`] |
//! | 4 | [`FORM`], little-endian |
//! | the rest | [blocks](super::blocks), which are compressed and have checksums |
//!
//! The blocks have the [`Head`], the contents of each memory file, and for each context the [`Record`]s of what its worker has written down. Messages
//! have their length before them, in four bytes. Whoever reads the bytes takes them to be hostile: a frontend may send anything.

use super::blocks::{BlockReader, BlockWriter, Mark, MemoryFails};
use super::contents::Target;
use crate::device::PassedDevice;
use crate::ipc::{self, Placement};
use crate::serve::blobs::SavedFile;
use crate::serve::blobs::rings::PassedRing;
use crate::transport::{PassedAnswer, PassedRequest, QUEUES};
use config::{CacheKey, MemoryName};
use outside::Span;
use protocol::ids::ContextId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The first bytes of each state.
const MAGIC: [u8; 8] = *b"vuvstate";
/// The form of the bytes behind it. It rises with each change of this file's types, and of the types in them.
const FORM: u32 = 1;
/// Bytes of the head, at most: some for each resource of the guest.
pub(super) const HEAD_BYTES_MAX: usize = 16 << 20;
/// Bytes of a record without what follows it, at most.
const RECORD_BYTES_MAX: usize = 64;

/// Time without progress after which a transfer with a frontend is given up.
pub(in crate::serve) const PATIENCE: Duration = Duration::from_secs(60);

/// Everything but the contents of memory and what workers have written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::serve) struct Head {
    pub(in crate::serve) device: PassedDevice<PassedRequest>,
    /// The answers of each queue that the driver has not been given yet.
    pub(in crate::serve) answers: [Vec<PassedAnswer>; QUEUES],
    /// The contexts that have a worker, in the order of their records.
    pub(in crate::serve) contexts: Vec<SavedContext>,
    pub(in crate::serve) files: Vec<SavedFile>,
    pub(in crate::serve) rings: Vec<PassedRing>,
    /// The key by which the pipeline caches that the guest keeps stay valid.
    pub(in crate::serve) cache_key: CacheKey,
}

/// A context that has a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::serve) struct SavedContext {
    pub(in crate::serve) ctx_id: ContextId,
    /// The name of its program, as the guest gives it.
    pub(in crate::serve) name: String,
    pub(in crate::serve) placement: Placement,
}

/// A message of a worker to its successor, or the contents of a slot that it has filled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Record {
    /// [`ipc::HandOver::File`].
    File(MemoryName),
    /// [`ipc::HandOver::Bytes`]: so many bytes follow.
    Bytes(u32),
    /// [`ipc::HandOver::Slots`].
    Slots { count: u32, bytes: u64 },
    /// [`ipc::HandOver::End`].
    End,
    /// The contents of the next slot follow.
    Slot,
    /// The context is complete.
    Over,
}

/// The reason why a state is not saved or loaded.
#[derive(Debug, thiserror::Error)]
pub(in crate::serve) enum StateError {
    /// The frontend's file fails.
    #[error("the frontend's file of the state cannot be read or written: {0}")]
    File(#[source] io::Error),
    /// The frontend does not read or write.
    #[error(
        "limit state-patience ({}) reached: the frontend reads or writes nothing of the state",
        Span(PATIENCE)
    )]
    Silent,
    /// The session is over.
    #[error("the frontend is gone")]
    Cancelled,
    /// The bytes are something else.
    #[error("the file is no state of this device")]
    NotAState,
    /// Another program has written the bytes.
    #[error(
        "the state has form {0}, and this program has form {FORM}: load it with the version that saved it"
    )]
    OtherForm(u32),
    /// The bytes are damaged, or were never written by this program.
    #[error("the state is damaged: {0}")]
    Damaged(&'static str),
    /// The host lacks memory or a descriptor.
    #[error("memory for the state: {0}")]
    Memory(#[source] io::Error),
    /// A worker does not do its part.
    #[error("context {0}: {1}")]
    Worker(ContextId, &'static str),
    /// This process does not go on with the state, or cannot write it down.
    #[error("{0}")]
    Refused(String),
}

/// A state that is being written.
pub(super) struct StateWriter<W: Write> {
    blocks: BlockWriter<W>,
}

impl<W: Write> StateWriter<W> {
    /// Begins a state.
    pub(super) fn new(mut out: W) -> Result<Self, StateError> {
        out.write_all(&MAGIC).and_then(|()| out.write_all(&FORM.to_le_bytes())).map_err(failed)?;
        Ok(Self { blocks: BlockWriter::new(out) })
    }

    /// Writes a message.
    pub(super) fn message(&mut self, message: &impl Serialize) -> Result<(), StateError> {
        let encoded = ipc::encode(message).map_err(|error| StateError::Refused(error.to_string()))?;
        let length = u32::try_from(encoded.len()).ok().filter(|length| *length as usize <= HEAD_BYTES_MAX);
        let length =
            length.ok_or_else(|| StateError::Refused("the guest has more than can be saved".into()))?;
        self.bytes(&length.to_le_bytes())?;
        self.bytes(&encoded)
    }

    /// Writes bytes whose number the reader knows.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        self.blocks.write_all(bytes).map_err(failed)
    }

    /// Writes the bytes of a memory file from `offset` on, so many. They must not change until the mark that is returned is passed ([`Self::settle`]),
    /// or the state is ended.
    pub(super) fn contents(
        &mut self,
        file: &Arc<OwnedFd>,
        offset: u64,
        bytes: u64,
    ) -> Result<Mark, StateError> {
        self.blocks.contents(file, offset, bytes).map_err(failed)
    }

    /// Waits until the contents ahead of a mark are read.
    pub(super) fn settle(&mut self, mark: Mark) -> Result<(), StateError> {
        self.blocks.settle(mark).map_err(failed)
    }

    /// Ends the state.
    pub(super) fn finish(self) -> Result<(), StateError> {
        let mut out = self.blocks.finish().map_err(failed)?;
        out.flush().map_err(failed)
    }
}

/// A state that is being read.
pub(super) struct StateReader<R: Read> {
    blocks: BlockReader<R>,
}

impl<R: Read> StateReader<R> {
    /// Begins to read a state.
    pub(super) fn new(mut from: R) -> Result<Self, StateError> {
        let (mut magic, mut form) = ([0; MAGIC.len()], [0; 4]);
        from.read_exact(&mut magic).map_err(unread)?;
        if magic != MAGIC {
            return Err(StateError::NotAState);
        }
        from.read_exact(&mut form).map_err(unread)?;
        match u32::from_le_bytes(form) {
            FORM => Ok(Self { blocks: BlockReader::new(from) }),
            other => Err(StateError::OtherForm(other)),
        }
    }

    /// Reads a message of at most so many bytes.
    pub(super) fn message<M: DeserializeOwned>(&mut self, bytes_max: usize) -> Result<M, StateError> {
        let mut length = [0; 4];
        self.bytes(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > bytes_max {
            return Err(StateError::Damaged("a message that is too long"));
        }
        let mut encoded = Vec::new();
        // Memory is taken for what has come, not for what is announced.
        let came = (&mut self.blocks).take(length as u64).read_to_end(&mut encoded).map_err(unread)?;
        if came < length {
            return Err(StateError::Damaged("it ends too soon"));
        }
        ipc::decode(&encoded).map_err(|_| StateError::Damaged("a message that says nothing"))
    }

    /// Reads a record.
    pub(super) fn record(&mut self) -> Result<Record, StateError> {
        self.message(RECORD_BYTES_MAX)
    }

    /// Fills the buffer.
    pub(super) fn bytes(&mut self, buffer: &mut [u8]) -> Result<(), StateError> {
        self.blocks.read_exact(buffer).map_err(unread)
    }

    /// Reads bytes, so many, into a memory file from `offset` on.
    pub(super) fn contents(
        &mut self,
        target: &Arc<Target>,
        offset: u64,
        bytes: u64,
    ) -> Result<(), StateError> {
        self.blocks.contents(target, offset, bytes).map_err(unread)
    }

    /// Reads the end.
    pub(super) fn finish(mut self) -> Result<(), StateError> {
        match self.blocks.read(&mut [0]).map_err(unread)? {
            0 => Ok(()),
            _ => Err(StateError::Damaged("bytes behind its end")),
        }
    }
}

/// The error of a file that takes nothing more, or of memory.
fn failed(error: io::Error) -> StateError {
    match error.kind() {
        io::ErrorKind::TimedOut => StateError::Silent,
        io::ErrorKind::ConnectionAborted => StateError::Cancelled,
        _ => match error.downcast::<MemoryFails>() {
            Ok(MemoryFails(error)) => StateError::Memory(error),
            Err(error) => StateError::File(error),
        },
    }
}

/// The error of a file that gives nothing more, or nothing sensible, or of memory.
fn unread(error: io::Error) -> StateError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => StateError::Damaged("it ends too soon"),
        io::ErrorKind::InvalidData => StateError::Damaged("a block of it makes no sense"),
        _ => failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut state = StateWriter::new(&mut bytes).unwrap();
        state.message(&Record::Bytes(3)).unwrap();
        state.bytes(b"abc").unwrap();
        state.message(&Record::Over).unwrap();
        state.finish().unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> Result<(), StateError> {
        let mut state = StateReader::new(bytes)?;
        let Record::Bytes(3) = state.record()? else { return Err(StateError::Damaged("another record")) };
        let mut three = [0; 3];
        state.bytes(&mut three)?;
        let Record::Over = state.record()? else { return Err(StateError::Damaged("another record")) };
        if three != *b"abc" {
            return Err(StateError::Damaged("other bytes"));
        }
        state.finish()
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        read(&written()).unwrap();
    }

    #[test]
    fn no_byte_of_a_state_can_be_another_and_none_missing() {
        let bytes = written();
        for at in 0..bytes.len() {
            for flip in [1, 0x80] {
                let mut other = bytes.clone();
                other[at] ^= flip;
                assert!(read(&other).is_err(), "byte {at} of {}", bytes.len());
            }
            assert!(read(&bytes[..at]).is_err(), "{at} bytes of {}", bytes.len());
        }
        assert!(matches!(read(b"a picture of a cat"), Err(StateError::NotAState)));
        let mut newer = bytes;
        newer[MAGIC.len()] = 77;
        assert!(matches!(read(&newer), Err(StateError::OtherForm(77))));
    }

    #[test]
    fn what_is_announced_takes_no_memory_before_it_comes() {
        let mut bytes = Vec::new();
        let mut state = StateWriter::new(&mut bytes).unwrap();
        state.bytes(&u32::try_from(HEAD_BYTES_MAX).unwrap().to_le_bytes()).unwrap();
        state.finish().unwrap();
        let mut state = StateReader::new(&bytes[..]).unwrap();
        assert!(matches!(state.message::<Head>(HEAD_BYTES_MAX), Err(StateError::Damaged(_))));
        let mut state = StateReader::new(&bytes[..]).unwrap();
        assert!(matches!(state.record(), Err(StateError::Damaged("a message that is too long"))));
    }
}
