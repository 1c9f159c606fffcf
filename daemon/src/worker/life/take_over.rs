//! The successor's side: it reads everything, and builds the context up.

use super::contents::Incoming;
use super::journal::Journal;
use super::link::Link;
use super::snapshot::{BYTES_MAX, FILES_MAX, Snapshot};
use crate::ipc::{HandOver, INLINE_SUBMIT_MAX, ToDevice};
use crate::worker::allowance::Allowances;
use crate::worker::at_rest::{Begin, Left};
use crate::worker::backend::Backend;
use crate::worker::context::Context;
use crate::worker::ring_thread::take_ring_over;
use config::{MemoryId, MemoryName, PerHeap};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use vulkan::{ContextLost, Gate, MemoryFile, Piece};

/// Everything that came over the link.
#[derive(Default)]
pub(super) struct Received {
    /// The files, each with the name of its memory.
    pub files: Vec<(MemoryName, OwnedFd)>,
    pub bytes: Vec<u8>,
    pub incoming: Option<Incoming>,
    /// The journal behind the checkpoint of this number.
    pub journal: Option<(u32, OwnedFd)>,
}

/// A context that was taken over.
pub(super) struct Taken {
    /// The state that the virtqueue's executor begins with.
    pub begin: Begin,
    /// The messages that name the memory which this worker has from its predecessor: the last is [`ToDevice::TakenOver`].
    pub said: Vec<ToDevice>,
    /// All files that came, to be kept until the messages were sent.
    pub files: Vec<Arc<MemoryFile>>,
    /// The messages that its predecessor has not executed.
    pub left: Vec<Left>,
}

/// The most pieces of memory that one message names: each has ten bytes at most.
const PIECES: usize = INLINE_SUBMIT_MAX / 11;

/// Takes over the context of another worker, which rests. Its rings rest here as well, until [`Context::go_on`].
///
/// # Errors
///
/// The context cannot be built up, and has ended here.
pub(super) fn take_over<B: Backend>(
    context: &Arc<Context<B>>,
    allowances: &Allowances,
    gates: &[Arc<Gate>],
    link: &Link,
) -> Result<Taken, ContextLost> {
    let Received { files, bytes, incoming, journal } = receive(link, (BYTES_MAX, FILES_MAX))?;
    let start = Instant::now();
    let mut snapshot = Snapshot::decode(&bytes)?;
    drop(bytes);
    let journal = match journal {
        Some((number, file)) => Journal::open(&File::from(file), number, &mut snapshot)?,
        None => Journal::default(),
    };
    let executed = journal.entries();
    allowances.take_over_credit(snapshot.credit);
    gates.iter().for_each(|gate| gate.take_over());
    let mut pieces = Vec::new();
    let file = |(memory, file): (MemoryName, OwnedFd)| {
        // Memory without a piece counts as credit.
        let MemoryName::Piece(memory) = memory else {
            return Arc::new(MemoryFile::new(file, Piece::uncounted()));
        };
        // If a resource is the same piece, both have to share one file.
        context.resources.file_of(memory).unwrap_or_else(|| {
            pieces.push(memory);
            Arc::new(MemoryFile::new(file, allowances.shown(memory)))
        })
    };
    let memories: Vec<_> = files.iter().map(|(memory, _)| *memory).collect();
    let files: Vec<_> = files.into_iter().map(file).collect();
    context.backend.rebuild(&snapshot.steps, &in_order(&snapshot.memories, &memories, &files)?)?;
    if !executed.is_empty() {
        context.backend.replay(&executed)?;
    }
    snapshot.rings.iter().try_for_each(|ring| take_ring_over(context, ring))?;
    let built = start.elapsed();
    match (context.backend.contents(&snapshot.steps)?, incoming) {
        (Some(contents), Some(incoming)) => incoming.receive(contents, link)?,
        (None, None) => {}
        _ => return Err(ContextLost::broken("a snapshot and its contents do not belong together")),
    }
    log::debug!(
        "taken over: built up in {built:.1?}, {} entries of a journal included, complete after {:.1?}",
        executed.len(),
        start.elapsed()
    );
    let begin = snapshot.virtqueue.begin(&context.resources)?;
    Ok(Taken { begin, said: said(&pieces, snapshot.credit), files, left: snapshot.left })
}

/// Returns the files of the memory that a snapshot names, in its order; `memories` says which memory each file is. If a file came twice, both are
/// used.
///
/// # Errors
///
/// A file has not come.
fn in_order(
    named: &[MemoryName],
    memories: &[MemoryName],
    files: &[Arc<MemoryFile>],
) -> Result<Vec<Arc<MemoryFile>>, ContextLost> {
    let mut places: FxHashMap<MemoryName, VecDeque<&Arc<MemoryFile>>> = FxHashMap::default();
    for (memory, file) in memories.iter().zip(files) {
        places.entry(*memory).or_default().push_back(file);
    }
    let mut next = |memory: &MemoryName| {
        let places = places.get_mut(memory)?;
        let file = places.pop_front()?;
        if places.is_empty() {
            places.push_back(file);
        }
        Some(Arc::clone(file))
    };
    named
        .iter()
        .map(|memory| next(memory).ok_or_else(|| ContextLost::broken("memory without its file")))
        .collect()
}

/// Returns the messages that name the memory which a successor has from its predecessor.
fn said(pieces: &[MemoryId], credit: PerHeap<u64>) -> Vec<ToDevice> {
    let (ahead, last) = pieces.split_at(pieces.len().saturating_sub(1) / PIECES * PIECES);
    let some = |pieces: &[MemoryId]| ToDevice::TakesOver { pieces: pieces.to_vec() };
    let taken = ToDevice::TakenOver { pieces: last.to_vec(), credit };
    ahead.chunks(PIECES).map(some).chain([taken]).collect()
}

/// Receives everything, at most so many bytes and files, before the successor makes any object.
///
/// # Errors
///
/// The other worker gives up, or sends more.
pub(super) fn receive(link: &Link, (bytes_max, files_max): (usize, usize)) -> Result<Received, ContextLost> {
    let mut received = Received::default();
    loop {
        let message = link.receive()?;
        match message {
            (HandOver::File { memory }, Some(file)) if received.files.len() < files_max => {
                received.files.push((memory, file));
            }
            (HandOver::Bytes(bytes), None) if received.bytes.len() + bytes.len() <= bytes_max => {
                received.bytes.extend(bytes);
            }
            (HandOver::Slots { count, bytes }, Some(file)) if received.incoming.is_none() => {
                received.incoming = Some(Incoming::announced(count, bytes, file)?);
            }
            (HandOver::Journal { number }, Some(file)) if received.journal.is_none() => {
                received.journal = Some((number, file));
            }
            (HandOver::End, None) => return Ok(received),
            (HandOver::File { .. }, None) => return Err(ContextLost::broken("memory without its file")),
            (HandOver::Slots { .. }, _) => {
                return Err(ContextLost::broken("slots without their file, or twice"));
            }
            (HandOver::Journal { .. }, _) => {
                return Err(ContextLost::broken("a journal without its file, or twice"));
            }
            (HandOver::Filled | HandOver::Emptied, _) => {
                return Err(ContextLost::broken("contents ahead of their snapshot"));
            }
            (HandOver::Bytes(_) | HandOver::End, Some(_)) => {
                return Err(ContextLost::broken("a file where no memory is announced"));
            }
            _ => return Err(ContextLost::broken("a snapshot that is too large")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::{Channel, encode};
    use std::os::fd::AsFd as _;
    use std::time::Duration;
    use vulkan::Cancel;

    #[test]
    fn bytes_and_files_are_counted_while_they_come() {
        for (bytes, files, is_taken) in [(10, 3, true), (11, 3, false), (10, 4, false), (0, 0, true)] {
            let (ours, peer) = Channel::pair().unwrap();
            let link = Link::new(ours.into_socket(), Cancel::default(), Duration::from_secs(100));
            let file = shm::create("test", 4096).unwrap();
            for memory in (0..files).map(|file| MemoryName::Piece(MemoryId(file))) {
                peer.send(&HandOver::File { memory }, Some(file.as_fd())).unwrap();
            }
            (0..bytes).for_each(|byte| peer.send(&HandOver::Bytes(vec![byte]), None).unwrap());
            peer.send(&HandOver::End, None).unwrap();
            match receive(&link, (10, 3)) {
                Ok(received) => {
                    assert!(is_taken, "{bytes} bytes and {files} files");
                    assert_eq!(received.bytes, (0..bytes).collect::<Vec<_>>());
                    let names: Vec<_> = received.files.iter().map(|(memory, _)| *memory).collect();
                    assert_eq!(
                        names,
                        (0..files).map(|file| MemoryName::Piece(MemoryId(file))).collect::<Vec<_>>()
                    );
                }
                Err(lost) => assert!(!is_taken && lost.to_string().contains("too large"), "{lost}"),
            }
        }
    }

    #[test]
    fn more_pieces_than_a_message_names_are_named_by_several() {
        for count in [0, 1, PIECES, PIECES + 1, 2 * PIECES, 5 * PIECES + 7] {
            let pieces: Vec<_> = (0..count as u64).map(|at| MemoryId(u64::MAX - at)).collect();
            let credit = PerHeap { device: u64::MAX, host: 7 };
            let mut messages = said(&pieces, credit);
            assert!(messages.iter().all(|message| encode(message).unwrap().len() <= INLINE_SUBMIT_MAX));
            assert_eq!(messages.len(), count.div_ceil(PIECES).max(1));
            let Some(ToDevice::TakenOver { pieces: last, credit: taken }) = messages.pop() else { panic!() };
            let ahead = messages.into_iter().flat_map(|message| match message {
                ToDevice::TakesOver { pieces } => pieces,
                other => panic!("{other:?}"),
            });
            assert_eq!((ahead.chain(last).collect::<Vec<_>>(), taken), (pieces, credit));
        }
    }
}
