//! The journal that a worker has left, as its successor reads it.
//!
//! The worker that wrote the journal may have been taken over: its bytes are trusted no more than a guest's.

use super::{
    BEGUN_FLAG, BLOCK, BLOCKS, CACHE_DATA_ROOM, COMMANDS, COMMIT, COUNT_AT, ENTRIES, ENTRIES_MAX,
    JOURNAL_BYTES, NUMBER, OF, OUTER, POSITION_FLAG, POSITIONS, Place, STREAM_FLAG, STREAMS, Stream,
};
use std::io;

/// The log of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The executor.
    pub of: u64,
    /// The number of blocks of this executor that come before.
    pub before: u32,
    /// The position of the executor.
    pub place: Place,
    /// The commands that the executor has executed, in order.
    pub entries: Vec<Entry>,
}

/// An entry: commands that were executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The place of the entry in the order of all.
    pub ticket: u32,
    /// The offset of the first byte in the file.
    pub at: u32,
    /// The number of bytes.
    pub length: u32,
}

/// The reason why a journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NoJournal {
    /// The file cannot be read.
    #[error("the journal cannot be read: {0}")]
    Read(#[from] io::Error),
    /// The file has entries that a worker does not write.
    #[error("a journal with invalid entries")]
    Nonsense,
}

/// Reads the logs that follow the checkpoint of this number. `read` fills a buffer from an offset of the file.
///
/// # Errors
///
/// The file cannot be read, or is no journal. All entries lie in the part of the file for commands, and have no more bytes in all than that part.
pub fn read(
    number: u32,
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> Result<Vec<Logged>, NoJournal> {
    let (mut all, mut bytes) = (Vec::new(), 0);
    for block in 0..u64::from(BLOCKS) {
        let mut head = [0; ENTRIES * 8];
        read(block * BLOCK, &mut head)?;
        let head = words(&head);
        if head[NUMBER] as u32 != number || number == 0 {
            continue;
        }
        let count = (head[COMMIT] >> COUNT_AT) as u16;
        if u32::from(count) > ENTRIES_MAX {
            return Err(NoJournal::Nonsense);
        }
        let mut entries = vec![0; usize::from(count) * 16];
        read(block * BLOCK + ENTRIES as u64 * 8, &mut entries)?;
        let entries = words(&entries).chunks_exact(2).map(entry).collect::<Result<Vec<_>, _>>()?;
        bytes += entries.iter().map(|entry| u64::from(entry.length)).sum::<u64>();
        if bytes > JOURNAL_BYTES - COMMANDS {
            return Err(NoJournal::Nonsense);
        }
        let before = (head[NUMBER] >> 32) as u32;
        all.push(Logged { of: head[OF], before, place: place(&head), entries });
    }
    Ok(all)
}

/// Reads the data of pipeline caches; empty if there are none. `read` fills a buffer from an offset of the file.
///
/// # Errors
///
/// The file cannot be read, or is no journal.
pub fn read_cache_data(mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> Result<Vec<u8>, NoJournal> {
    let mut length = [0; 8];
    read(JOURNAL_BYTES, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > CACHE_DATA_ROOM {
        return Err(NoJournal::Nonsense);
    }
    let mut bytes = vec![0; length as usize];
    read(JOURNAL_BYTES + 8, &mut bytes)?;
    Ok(bytes)
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

fn entry(words: &[u64]) -> Result<Entry, NoJournal> {
    let (at, length) = (words[0] as u32, (words[0] >> 32) as u32);
    let is_within = u64::from(at) >= COMMANDS && u64::from(at) + u64::from(length) <= JOURNAL_BYTES;
    let entry = Entry { ticket: words[1] as u32, at, length };
    is_within.then_some(entry).ok_or(NoJournal::Nonsense)
}

fn place(head: &[u64]) -> Place {
    let commit = head[COMMIT];
    let value = commit as u32;
    let is_begun = commit & BEGUN_FLAG != 0;
    let stream = STREAMS + 3 * usize::from(commit & STREAM_FLAG != 0);
    let resource = match head[stream] as u32 {
        0 => None,
        1 => Some(None),
        _ => Some(Some((head[stream] >> 32) as u32)),
    };
    Place {
        head: if is_begun { head[OUTER] as u32 } else { value },
        begun: is_begun.then_some(value),
        position: head[POSITIONS + usize::from(commit & POSITION_FLAG != 0)],
        stream: resource.map(|resource| Stream {
            resource,
            offset: head[stream + 1],
            size: head[stream + 2],
        }),
    }
}
