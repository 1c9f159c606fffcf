//! The journal of a context: the commands that its worker has executed since its last checkpoint, in a memory file that the device process keeps.
//!
//! The worker copies commands out of its rings into the journal in place of other private memory, and executes them from there. It *logs* the places
//! of the commands that another worker has to execute again. So commands are copied once, as without a journal. The device process neither reads nor
//! writes a journal: it gives the file to the worker that follows ([`read()`]).
//!
//! The file begins with blocks of logs. Room for commands follows, and then room for the data of pipeline caches, which belong to no checkpoint. Each
//! executor has logs of its own, one block after the other. The head of a log has its *commit word*, with the number of its entries and the position
//! of its executor: one store publishes both. Entries have tickets, which give the order in which commands of several executors began.

mod read;

pub use read::{Entry, Logged, NoJournal, read, read_cache_data};

use super::{MapError, Mapping, create};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

/// Bytes of logs and commands. Bytes that were never used take no memory.
pub const JOURNAL_BYTES: u64 = 32 << 20;
/// Bytes behind the journal for the data of pipeline caches: their number in eight bytes, and the data.
const CACHE_DATA_BYTES: u64 = 64 << 20;
/// Room for the data of pipeline caches, in bytes.
pub const CACHE_DATA_ROOM: u64 = CACHE_DATA_BYTES - 8;
/// Bytes of one block of a log.
const BLOCK: u64 = 64 << 10;
/// The number of blocks.
const BLOCKS: u32 = 128;
/// The offset of the bytes for commands.
pub const COMMANDS: u64 = BLOCK * BLOCKS as u64;

// The head of a block, of 8-byte words, and its entries of two words each.
/// The number of the checkpoint, and above it the index of the block among its executor's.
const NUMBER: usize = 0;
/// The executor.
const OF: usize = 1;
/// The commit word.
const COMMIT: usize = 2;
/// The head of the ring, while the executor executes streams that a command of the ring names.
const OUTER: usize = 3;
/// Two places for the position of the reply stream, and two for the stream, of three words each. The commit word says which of the two counts.
const POSITIONS: usize = 4;
const STREAMS: usize = 6;
const ENTRIES: usize = 16;

/// The number of entries of a block.
const ENTRIES_MAX: u32 = (BLOCK as usize / 16 - ENTRIES / 2) as u32;

// The commit word: the head, or the executed bytes of streams, in the lower half; above them the number of entries, and flags.
const COUNT_AT: u32 = 32;
const POSITION_FLAG: u64 = 1 << 61;
const STREAM_FLAG: u64 = 1 << 62;
const BEGUN_FLAG: u64 = 1 << 63;

/// The journal, as the worker that writes it sees it.
#[derive(Debug)]
pub struct Journal {
    pages: Mapping,
    /// The number of the checkpoint that the journal follows; 0 before the first.
    number: AtomicU32,
    /// Bytes for commands, and blocks, that are handed out.
    taken: AtomicU64,
    blocks: AtomicU32,
    tickets: AtomicU32,
    /// The number of parts that executors use.
    lent: AtomicU32,
    /// The journal was found to be filling.
    is_told: AtomicBool,
}

/// The position of an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Everything before this position of its ring is executed.
    pub head: u32,
    /// The number of executed bytes of the streams that the next command names, if it has begun.
    pub begun: Option<u32>,
    /// The position in its reply stream, if it has one.
    pub position: u64,
    /// The reply stream.
    pub stream: Option<Stream>,
}

/// The memory that replies go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The id of its resource; none if the context no longer sees that.
    pub resource: Option<u32>,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub size: u64,
}

/// A part of the journal to which only one executor writes.
#[derive(Debug)]
struct Part {
    journal: Arc<Journal>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the bytes of a part are those of no other part, and its pages stay for as long as the journal that it holds.
unsafe impl Send for Part {}
// SAFETY: as above; through `&Part` its bytes are read, or words are accessed atomically.
unsafe impl Sync for Part {}

/// Memory for commands.
#[derive(Debug)]
pub struct CommandBytes(Part);

/// The log of one executor.
#[derive(Debug)]
pub struct Log {
    block: Part,
    count: u32,
    /// The flags of the commit word.
    flags: u64,
}

impl Journal {
    /// Makes the file of a journal.
    ///
    /// # Errors
    ///
    /// The system is out of descriptors or memory.
    pub fn create() -> io::Result<OwnedFd> {
        create("journal", JOURNAL_BYTES + CACHE_DATA_BYTES)
    }

    /// Opens the journal in a file that no other process writes to. The journal keeps no commands before [`Self::begins`].
    ///
    /// # Errors
    ///
    /// The file was not made by [`Self::create`], or the system refuses.
    pub fn open(file: impl AsFd) -> Result<Self, MapError> {
        let pages = Mapping::new(file, JOURNAL_BYTES + CACHE_DATA_BYTES)?;
        let (number, taken, blocks, tickets, lent, is_told) = Default::default();
        Ok(Self { pages, number, taken, blocks, tickets, lent, is_told })
    }

    /// Empties the journal, which follows the checkpoint of this number (not 0) from now on. Returns false, and does nothing, if a part is in use.
    pub fn begins(&self, number: u32) -> bool {
        if self.lent.load(Acquire) != 0 {
            return false;
        }
        self.taken.store(0, Relaxed);
        self.blocks.store(0, Relaxed);
        self.tickets.store(0, Relaxed);
        self.is_told.store(false, Relaxed);
        self.number.store(number, Release);
        true
    }

    /// Keeps the data of pipeline caches in place of older data; keeps none if they are more than [`CACHE_DATA_ROOM`]. If this worker dies meanwhile,
    /// the journal has none.
    pub fn keep_cache_data(&self, bytes: &[u8]) {
        let length = if bytes.len() as u64 <= CACHE_DATA_ROOM { bytes.len() as u64 } else { 0 };
        let parts =
            [(0, &0u64.to_le_bytes()[..]), (8, &bytes[..length as usize]), (0, &length.to_le_bytes())];
        for (at, part) in parts {
            let copied = self.pages.copy_in(JOURNAL_BYTES + at, part);
            debug_assert!(copied.is_ok(), "there is room");
            fence(Release);
        }
    }

    /// Returns the number of the checkpoint that the journal follows; 0 before the first.
    pub fn number(&self) -> u32 {
        self.number.load(Acquire)
    }

    /// Returns the next ticket. An executor takes it before it executes a command.
    #[inline]
    pub fn ticket(&self) -> u32 {
        self.tickets.fetch_add(1, Relaxed)
    }

    /// Returns the place of these bytes in the journal, if they are in its [`CommandBytes`].
    #[inline]
    pub fn place_of(&self, bytes: &[u8]) -> Option<u32> {
        let at = (bytes.as_ptr().addr() as u64).wrapping_sub(self.pages.as_ptr().addr() as u64);
        (at.wrapping_sub(COMMANDS) < JOURNAL_BYTES - COMMANDS).then_some(at as u32)
    }

    /// Hands out memory for so many bytes of commands; none if no memory is left.
    pub fn bytes(self: &Arc<Self>, bytes: usize) -> Option<CommandBytes> {
        // Parts begin at lines of the cache.
        let wanted = (bytes as u64).checked_next_multiple_of(64)?;
        let room = JOURNAL_BYTES - COMMANDS;
        let next = |taken: u64| taken.checked_add(wanted).filter(|end| *end <= room);
        let at = self.taken.fetch_update(Relaxed, Relaxed, next).ok()?;
        Some(CommandBytes(self.part(COMMANDS + at, bytes)?))
    }

    /// Returns whether another checkpoint is due, because a quarter of the bytes or three quarters of the blocks are taken; true once for each
    /// checkpoint. Once a page of a journal was used, it takes memory from then on, so the journal should use few.
    pub fn is_filling(&self) -> bool {
        let taken = self.taken.load(Relaxed) >= (JOURNAL_BYTES - COMMANDS) / 4;
        (taken || self.blocks.load(Relaxed) >= BLOCKS / 4 * 3) && !self.is_told.swap(true, Relaxed)
    }

    /// Begins a block of an executor's log, after `before` earlier blocks, with the executor at a `place`; none if no block is left.
    pub fn log(self: &Arc<Self>, of: u64, before: u32, place: &Place) -> Option<Log> {
        let next = |blocks: u32| (blocks < BLOCKS).then_some(blocks + 1);
        let at = self.blocks.fetch_update(Relaxed, Relaxed, next).ok()?;
        let block = self.part(u64::from(at) * BLOCK, BLOCK as usize)?;
        let mut log = Log { block, count: 0, flags: 0 };
        // A block with another number does not count.
        log.word(NUMBER, 0, Release);
        log.word(OF, of, Relaxed);
        log.moves(place.position);
        log.streams(place.stream);
        log.word(OUTER, place.head.into(), Relaxed);
        match place.begun {
            Some(begun) => log.begins(begun),
            None => log.commits(place.head),
        }
        log.word(NUMBER, u64::from(before) << 32 | u64::from(self.number.load(Relaxed)), Release);
        Some(log)
    }

    fn part(self: &Arc<Self>, at: u64, bytes: usize) -> Option<Part> {
        let start = NonNull::new(self.pages.as_ptr().cast::<u8>().wrapping_add(at as usize))?;
        self.pages.contains(at, bytes as u64).then(|| {
            self.lent.fetch_add(1, AcqRel);
            Part { journal: Arc::clone(self), start, bytes }
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.journal.lent.fetch_sub(1, AcqRel);
    }
}

impl CommandBytes {
    /// Returns the place in the journal where the bytes begin.
    pub fn place(&self) -> u32 {
        (self.0.start.as_ptr().addr() - self.0.journal.pages.as_ptr().addr()) as u32
    }
}

impl Deref for CommandBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `Journal::part` has found the bytes within the pages, which the part keeps. They are handed out to no other part before this one
        // is gone, and no other process writes to the file while a worker has its journal open.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.bytes) }
    }
}

impl DerefMut for CommandBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.bytes) }
    }
}

impl Log {
    /// Returns whether there is no room for one more entry.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.count >= ENTRIES_MAX
    }

    /// Adds an entry: `length` bytes of commands at `at` ([`Journal::place_of`]), with their ticket. The entry counts from the next commit on. A full log
    /// takes none.
    #[inline]
    pub fn adds(&mut self, at: u32, length: u32, ticket: u32) {
        if self.is_full() {
            return;
        }
        let entry = ENTRIES + 2 * self.count as usize;
        self.word(entry, u64::from(length) << 32 | u64::from(at), Relaxed);
        self.word(entry + 1, ticket.into(), Relaxed);
        self.count += 1;
    }

    /// Notes that the executor's replies go to this position, from the next commit on.
    #[inline]
    pub fn moves(&mut self, position: u64) {
        self.flags ^= POSITION_FLAG;
        self.word(POSITIONS + usize::from(self.flags & POSITION_FLAG != 0), position, Relaxed);
    }

    /// Notes that the executor's replies go to this stream, from the next commit on.
    pub fn streams(&mut self, stream: Option<Stream>) {
        self.flags ^= STREAM_FLAG;
        let at = STREAMS + 3 * usize::from(self.flags & STREAM_FLAG != 0);
        let resource = stream.map_or(0, |stream| stream.resource.map_or(1, |id| u64::from(id) << 32 | 2));
        let (offset, size) = stream.map_or((0, 0), |stream| (stream.offset, stream.size));
        [resource, offset, size].into_iter().zip(at..).for_each(|(word, at)| self.word(at, word, Relaxed));
    }

    /// Commits that everything before `head` is executed, and publishes the added entries.
    #[inline]
    pub fn commits(&mut self, head: u32) {
        let word = self.flags | u64::from(self.count) << COUNT_AT | u64::from(head);
        self.word(COMMIT, word, Release);
    }

    /// Notes that the executor begins with the streams that the command at `head` names.
    pub fn enters(&mut self, head: u32) {
        self.word(OUTER, head.into(), Relaxed);
    }

    /// Commits that so many bytes of the streams of the command at the head of [`Self::enters`] are executed, and publishes the added entries.
    #[inline]
    pub fn begins(&mut self, begun: u32) {
        let word = BEGUN_FLAG | self.flags | u64::from(self.count) << COUNT_AT | u64::from(begun);
        self.word(COMMIT, word, Release);
    }

    #[inline]
    fn word(&self, at: usize, value: u64, order: std::sync::atomic::Ordering) {
        debug_assert!(at < BLOCK as usize / 8);
        let word = self.block.start.cast::<u64>().as_ptr().wrapping_add(at);
        // SAFETY: blocks are aligned to pages and are `BLOCK` bytes long. Constants are within the head, and `adds` goes no further than
        // `ENTRIES_MAX`, with which the last entry ends within the block. These words are accessed only here, and atomically.
        unsafe { AtomicU64::from_ptr(word) }.store(value, order);
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    fn journal() -> (Arc<Journal>, File) {
        let file = Journal::create().unwrap();
        (Arc::new(Journal::open(&file).unwrap()), File::from(file))
    }

    fn logged(file: &File, number: u32) -> Vec<Logged> {
        read(number, |at, into| file.read_exact_at(into, at)).unwrap()
    }

    fn place(head: u32) -> Place {
        Place { head, ..Place::default() }
    }

    #[test]
    fn what_is_committed_is_read_and_nothing_else() {
        let (journal, file) = journal();
        assert!(journal.begins(7));
        let mut bytes = journal.bytes(100).unwrap();
        bytes[..8].copy_from_slice(b"commands");
        let at = journal.place_of(&bytes[2..8]).unwrap();
        assert_eq!((at, journal.place_of(b"others")), (bytes.place() + 2, None));
        let mut log = journal.log(5, 0, &place(1000)).unwrap();
        assert_eq!((logged(&file, 7)[0].place, logged(&file, 7)[0].entries.len()), (place(1000), 0));
        let ticket = journal.ticket();
        log.adds(at, 6, ticket);
        let stream = Some(Stream { resource: Some(9), offset: 4, size: 1 << 40 });
        log.streams(stream);
        log.moves(1 << 33);
        let before = logged(&file, 7).remove(0);
        assert_eq!((before.entries.len(), before.place), (0, place(1000)), "nothing is committed");
        log.commits(1006);
        let read = logged(&file, 7).remove(0);
        assert_eq!((read.of, read.before), (5, 0));
        assert_eq!(read.place, Place { head: 1006, begun: None, position: 1 << 33, stream });
        assert_eq!(read.entries, [Entry { ticket, at, length: 6 }]);
        let mut text = [0; 6];
        file.read_exact_at(&mut text, at.into()).unwrap();
        assert_eq!(&text, b"mmands");
        assert!(logged(&file, 8).is_empty(), "it follows another checkpoint");
    }

    #[test]
    fn data_of_pipeline_caches_are_kept_whole_or_not_at_all() {
        let (journal, file) = journal();
        let kept = || read_cache_data(|at, into| file.read_exact_at(into, at)).map_err(drop);
        assert_eq!(kept(), Ok(Vec::new()));
        let most = vec![7; CACHE_DATA_ROOM as usize];
        for bytes in [&b"data"[..], b"", &most, b"again"] {
            journal.keep_cache_data(bytes);
            assert_eq!(kept().as_deref(), Ok(bytes));
            assert!(journal.begins(3), "it is of no checkpoint");
            assert_eq!(kept().as_deref(), Ok(bytes));
        }
        journal.keep_cache_data(&[&most[..], &[7]].concat());
        assert_eq!(kept(), Ok(Vec::new()), "there is no room");
        file.write_all_at(&(CACHE_DATA_ROOM + 1).to_le_bytes(), JOURNAL_BYTES).unwrap();
        assert_eq!(kept(), Err(()));
    }

    #[test]
    fn streams_that_a_command_names_are_executed_in_parts() {
        let (journal, file) = journal();
        assert!(journal.begins(1));
        let mut log = journal.log(5, 3, &Place { begun: Some(8), ..place(50) }).unwrap();
        let place = |file| logged(file, 1)[0].place;
        assert_eq!((place(&file).head, place(&file).begun), (50, Some(8)));
        log.commits(60);
        assert_eq!((place(&file).head, place(&file).begun), (60, None));
        log.enters(60);
        log.begins(4);
        assert_eq!((place(&file).head, place(&file).begun), (60, Some(4)));
        log.streams(Some(Stream { resource: None, offset: 0, size: 5 }));
        log.commits(70);
        assert_eq!(place(&file).stream.map(|stream| stream.resource), Some(None));
        assert_eq!(logged(&file, 1)[0].before, 3);
    }

    #[test]
    fn a_journal_is_used_again_when_no_part_of_it_is_in_use() {
        let (journal, file) = journal();
        assert!(journal.begins(1));
        let mut log = journal.log(5, 0, &place(0)).unwrap();
        log.adds(COMMANDS as u32, 4, 0);
        log.commits(4);
        let bytes = journal.bytes(4096).unwrap();
        assert!(!journal.begins(2), "a part is in use");
        drop(log);
        assert!(!journal.begins(2));
        let first = bytes.place();
        drop(bytes);
        assert!(journal.begins(2) && logged(&file, 2).is_empty());
        assert_eq!(journal.bytes(1).unwrap().place(), first);
        let log = journal.log(6, 0, &place(1)).unwrap();
        assert_eq!(logged(&file, 2).len(), 1);
        assert!(logged(&file, 1).is_empty());
        drop(log);
    }

    #[test]
    fn it_is_full_when_blocks_or_bytes_are_used_up_and_says_so_once_before() {
        let (journal, _) = journal();
        assert!(journal.begins(1) && !journal.is_filling());
        let room = (JOURNAL_BYTES - COMMANDS) as usize;
        let first = journal.bytes(room / 4 * 3).unwrap();
        assert!(journal.is_filling() && !journal.is_filling());
        assert!(journal.bytes(room / 2).is_none() && journal.bytes(usize::MAX).is_none());
        let last = journal.bytes(room / 4).unwrap();
        assert!(journal.bytes(1).is_none());
        drop((first, last));
        assert!(journal.begins(2));
        let blocks: Vec<_> = (0..BLOCKS).map(|block| journal.log(1, block, &place(0)).unwrap()).collect();
        assert!(journal.is_filling() && journal.log(1, BLOCKS, &place(0)).is_none());
        drop(blocks);
    }

    #[test]
    fn a_block_takes_entries_until_it_is_full() {
        let (journal, file) = journal();
        assert!(journal.begins(1));
        let mut log = journal.log(5, 0, &place(0)).unwrap();
        for entry in 0..ENTRIES_MAX + 2 {
            assert_eq!(log.is_full(), entry >= ENTRIES_MAX);
            log.adds(COMMANDS as u32, 0, entry);
        }
        log.commits(1);
        assert_eq!(logged(&file, 1)[0].entries.len(), ENTRIES_MAX as usize);
    }
}
