//! The journal of a dead worker, as its successor reads it: the commands that the dead worker has executed since its checkpoint, in order, and the
//! positions of its rings.
//!
//! The dead worker may have been taken over, so its journal is as hostile as a guest's stream: when commands are executed again, they pass the
//! decoder and all checks.

use super::snapshot::{CacheParts, Snapshot};
use crate::worker::at_rest::{AtRest, RingAtRest};
use crate::worker::journal::VIRTQUEUE;
use crate::worker::reply::ReplyPlace;
use protocol::cursor::{Arena, Reader};
use protocol::ids::ResourceId;
use protocol::venus::generated::Command;
use protocol::venus::stream::Header;
#[cfg(any(test, feature = "fuzzing"))]
use shm::journal::{COMMANDS, JOURNAL_BYTES};
use shm::journal::{Entry, Logged, NoJournal, Place, Stream, read, read_cache_data};
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use vulkan::snapshot::step::Step;
use vulkan::{ContextLost, InheritedError};

/// The commands that are to be executed again, in their order. An entry is one command or several.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Journal {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Journal {
    /// Reads the journal behind the checkpoint of this number out of a file, and brings the rings of the snapshot to their last positions.
    ///
    /// # Errors
    ///
    /// The file is no journal of this snapshot.
    pub(super) fn open(file: &File, number: u32, snapshot: &mut Snapshot) -> Result<Self, ContextLost> {
        Self::read(|at, into| file.read_exact_at(into, at), number, snapshot)
    }

    /// Reads the journal from any source.
    pub(super) fn read(
        fill: impl Fn(u64, &mut [u8]) -> io::Result<()>,
        number: u32,
        snapshot: &mut Snapshot,
    ) -> Result<Self, ContextLost> {
        bring_along(read_cache_data(&fill), snapshot);
        let logs = read(number, &fill).map_err(|error| unread(&error))?;
        let mut entries: Vec<&Entry> = Vec::new();
        for log in &logs {
            match log.of {
                VIRTQUEUE => bring_up(&mut snapshot.rings, log, &fill)?,
                _ => {
                    place(&mut snapshot.rings, log, &logs)?;
                    entries.extend(&log.entries);
                }
            }
        }
        entries.sort_unstable_by_key(|entry| entry.ticket);
        let mut journal = Self::default();
        for entry in entries {
            copy(entry, &fill, &mut journal.bytes)?;
            journal.ends.push(journal.bytes.len());
        }
        Ok(journal)
    }

    /// Returns the commands, entry by entry.
    pub(super) fn entries(&self) -> Vec<&[u8]> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end]).collect()
    }
}

/// Puts the data of pipeline caches ahead of the steps of the snapshot. Without these data the driver compiles pipelines again.
fn bring_along(data: Result<Vec<u8>, NoJournal>, snapshot: &mut Snapshot) {
    let again = |why: &dyn Display| log::debug!("pipelines are compiled again: {why}");
    match data {
        Ok(bytes) if bytes.is_empty() => {}
        Ok(bytes) => match CacheParts::decode(&bytes) {
            Ok(all) => _ = snapshot.steps.splice(0..0, all.into_iter().map(Step::CacheData)),
            Err(why) => again(&why),
        },
        Err(why) => again(&why),
    }
}

/// Appends the bytes of an entry. All entries together are no longer than the journal.
fn copy(
    entry: &Entry,
    fill: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    to: &mut Vec<u8>,
) -> Result<(), ContextLost> {
    let start = to.len();
    to.resize(start + entry.length as usize, 0);
    let filled = fill(entry.at.into(), &mut to[start..]);
    filled.map_err(|error| unread(&NoJournal::Read(error)))
}

fn unread(error: &NoJournal) -> ContextLost {
    ContextLost::from(InheritedError::Unreadable(error.to_string()))
}

/// Brings a ring to where its last log says that it was.
fn place(rings: &mut [RingAtRest], log: &Logged, logs: &[Logged]) -> Result<(), ContextLost> {
    let ring = rings.iter_mut().find(|ring| ring.id == log.of);
    let ring = ring.ok_or_else(|| ContextLost::broken("a journal of a ring that is not in the snapshot"))?;
    if logs.iter().any(|other| other.of == log.of && other.before > log.before) {
        return Ok(());
    }
    let Place { head, begun, position, stream } = log.place;
    let reply = stream.map(|Stream { resource, offset, size }| ReplyPlace {
        resource: resource.map(ResourceId),
        offset,
        size,
        position,
    });
    (ring.head, ring.executor) = (head, AtRest { reply, begun: begun.map(u64::from) });
    Ok(())
}

/// Tells the rings how far the virtqueue's stream has come.
fn bring_up(
    rings: &mut [RingAtRest],
    log: &Logged,
    fill: impl Fn(u64, &mut [u8]) -> io::Result<()>,
) -> Result<(), ContextLost> {
    let mut arena = Arena::new(4096);
    for entry in &log.entries {
        arena.reset();
        let mut bytes = Vec::new();
        copy(entry, &fill, &mut bytes)?;
        let mut reader = Reader::new(&bytes, &arena);
        let header = Header::decode(&mut reader)?;
        let Command::SubmitVirtqueueSeqnoMESA(submit) = Command::decode(header.number, &mut reader)? else {
            return Err(ContextLost::broken("a command of the virtqueue that is in no journal"));
        };
        let ring = rings.iter_mut().find(|ring| ring.id == submit.ring);
        let ring =
            ring.ok_or_else(|| ContextLost::broken("a journal of a ring that is not in the snapshot"))?;
        ring.virtqueue_seqno = ring.virtqueue_seqno.max(submit.seqno);
    }
    Ok(())
}

/// The entry point for fuzzing: any bytes are read as the first log of a journal and its commands, of a snapshot with one ring, or refused.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::worker) fn fuzz_read(bytes: &[u8]) -> usize {
    let (log, commands) = bytes.split_at(bytes.len().min(LOG_BYTES));
    let fill = |at: u64, into: &mut [u8]| {
        // Bytes that the fuzzer does not give are zero.
        let (part, at) = match at {
            ..COMMANDS => (log, at),
            COMMANDS..JOURNAL_BYTES => (commands, at - COMMANDS),
            // The same bytes serve as the data of pipeline caches.
            _ => (commands, at - JOURNAL_BYTES),
        };
        let rest = usize::try_from(at).ok().and_then(|at| part.get(at..)).unwrap_or_default();
        let (some, zero) = into.split_at_mut(rest.len().min(into.len()));
        some.copy_from_slice(&rest[..some.len()]);
        zero.fill(0);
        Ok(())
    };
    let (created_by, executor) = (Vec::new(), AtRest::default());
    let ring = RingAtRest { id: 5, created_by, head: 0, virtqueue_seqno: 0, executor };
    let parts = (AtRest::default(), vec![ring]);
    let mut snapshot = Snapshot::new(Vec::new(), Vec::new(), parts, config::PerHeap::default(), Vec::new());
    let Ok(journal) = Journal::read(fill, 1, &mut snapshot) else { return 0 };
    assert!(journal.bytes.len() as u64 <= JOURNAL_BYTES);
    assert_eq!(journal.entries().concat(), journal.bytes);
    journal.ends.len() + 1
}

/// A journal for a fuzzer to begin with.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::worker) fn seed() -> Vec<u8> {
    let mut bytes = vec![0; LOG_BYTES + 32];
    let Ok(file) = shm::journal::Journal::create() else { return bytes };
    if let Ok(journal) = shm::journal::Journal::open(&file).map(std::sync::Arc::new)
        && journal.begins(1)
        && let Some(mut log) = journal.log(5, 0, &Place::default())
    {
        log.adds(COMMANDS as u32, 16, journal.ticket());
        log.commits(16);
        let (log, _) = bytes.split_at_mut(LOG_BYTES);
        let _ = File::from(file).read_exact_at(log, 0);
    }
    bytes
}

/// Bytes of a log that a fuzzer gives.
#[cfg(any(test, feature = "fuzzing"))]
const LOG_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_journal_says_is_read_or_refused() {
        let bytes = seed();
        assert_eq!(fuzz_read(&bytes), 2);
        for at in 0..LOG_BYTES {
            for with in [0, 1, 0x7f, 0x80, 0xff] {
                let mut other = bytes.clone();
                other[at] = with;
                fuzz_read(&other);
            }
        }
    }
}
