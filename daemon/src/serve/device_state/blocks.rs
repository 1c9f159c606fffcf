//! Blocks of a state: parts of its bytes that are compressed and have a checksum each, so that several threads work on them at a time.
//!
//! | bytes | content |
//! | --- | --- |
//! | 4 | bytes of the block, little-endian, at most [`BLOCK_BYTES`]; 0 for the end |
//! | 4 | bytes of its data; as many as the block has, if these are not compressed |
//! | 8 | XXH64 of the block; the seed is the number of the block, so that no block can take the place of another |
//! | … | the data (LZ4's block format) |

use super::contents::{self, Target};
use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use twox_hash::XxHash64;
use waiting::processors::processors;

/// Bytes of a block, at most.
const BLOCK_BYTES: usize = 1 << 20;
const HEADER_BYTES: usize = 16;
/// Threads of a pool, at most.
const THREADS_MAX: usize = 8;

/// A block on its way through a thread, with memory that is used again.
#[derive(Debug, Default)]
struct Block {
    number: u64,
    /// The bytes of the block, with memory for more behind them.
    plain: Vec<u8>,
    /// The number of bytes of the block.
    length: usize,
    /// Its data, compressed or not. A writer's data begin with the header.
    data: Vec<u8>,
    /// The checksum of the bytes, as the header says.
    hash: u64,
    /// The memory file from which a thread reads the bytes of the block before it compresses them, and their offset in it.
    from: Option<(Arc<OwnedFd>, u64)>,
    /// The memory file into which a thread writes the bytes of the block, and their offset in it.
    into: Option<(Arc<Target>, u64)>,
}

/// A memory file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("memory: {0}")]
pub(super) struct MemoryFails(#[source] pub(super) io::Error);

impl From<MemoryFails> for io::Error {
    fn from(why: MemoryFails) -> Self {
        Self::other(why)
    }
}

/// A block, and the place where its result is awaited.
type Job = (Block, SyncSender<io::Result<Block>>);

/// Threads that work on blocks. A new thread starts when the others have enough to do. All end by themselves when this value is gone.
struct Pool {
    work: fn(Block) -> io::Result<Block>,
    jobs: Sender<Job>,
    taken: Arc<Mutex<Receiver<Job>>>,
    threads: usize,
    threads_max: usize,
    /// The blocks under way, in their order.
    under_way: VecDeque<Receiver<io::Result<Block>>>,
}

impl Pool {
    fn new(work: fn(Block) -> io::Result<Block>, threads_max: usize) -> Self {
        let (jobs, taken) = channel();
        let taken = Arc::new(Mutex::new(taken));
        Self { work, jobs, taken, threads: 0, threads_max, under_way: VecDeque::new() }
    }

    /// Returns whether as many blocks are under way as all threads can use.
    fn is_full(&self) -> bool {
        self.under_way.len() >= 2 * self.threads_max.max(1)
    }

    /// Has a block worked on.
    fn put(&mut self, block: Block) {
        // Most states have one block, which needs no thread.
        if self.under_way.len() > self.threads && self.threads < self.threads_max {
            self.start();
        }
        let (done, result) = sync_channel(1);
        if self.threads == 0 {
            let _ = done.send((self.work)(block));
        } else {
            // This value holds the other end too, so the job is taken.
            let _ = self.jobs.send((block, done));
        }
        self.under_way.push_back(result);
    }

    /// Starts a thread. If the system refuses, no other is started.
    fn start(&mut self) {
        let (work, taken) = (self.work, Arc::clone(&self.taken));
        let run = move || {
            loop {
                let next = taken.lock().recv();
                let Ok((block, done)) = next else { return };
                // If nothing waits for the block, the transfer is over.
                let _ = done.send(work(block));
            }
        };
        match std::thread::Builder::new().name("blocks".into()).spawn(run) {
            Ok(_) => self.threads += 1,
            Err(_) => self.threads_max = self.threads,
        }
    }

    /// Waits for the next block. Returns none if none is under way.
    fn next(&mut self) -> Option<io::Result<Block>> {
        let result = self.under_way.pop_front()?;
        Some(result.recv().unwrap_or_else(|_| Err(io::Error::other("a thread that works on blocks is gone"))))
    }
}

/// A place among the blocks that are written: that behind so many blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

/// Writes bytes as blocks.
pub(super) struct BlockWriter<W: Write> {
    out: W,
    pool: Pool,
    current: Block,
    spare: Vec<Block>,
    number: u64,
}

impl<W: Write> BlockWriter<W> {
    pub(super) fn new(out: W) -> Self {
        let (current, spare, number) = Default::default();
        Self { out, pool: Pool::new(encode, threads_max()), current, spare, number }
    }

    /// Returns a buffer for the next bytes, at most so many, which are written by [`Self::filled`].
    fn buffer(&mut self, most: usize) -> &mut [u8] {
        let Block { plain, length, .. } = &mut self.current;
        plain.resize(BLOCK_BYTES, 0);
        let some = most.min(BLOCK_BYTES - *length);
        &mut plain[*length..][..some]
    }

    /// Writes the first `count` bytes of the last [`Self::buffer`].
    fn filled(&mut self, count: usize) -> io::Result<()> {
        self.current.length += count;
        match self.current.length == BLOCK_BYTES {
            true => self.put_current(),
            false => Ok(()),
        }
    }

    /// Writes the bytes of a memory file from `offset` on, so many. Threads read them, most of them after this call: they must not change until the
    /// mark that is returned is passed ([`Self::settle`]).
    pub(super) fn contents(&mut self, file: &Arc<OwnedFd>, offset: u64, bytes: u64) -> io::Result<Mark> {
        let mut done = 0;
        while bytes - done >= BLOCK_BYTES as u64 {
            self.put_current()?;
            (self.current.length, self.current.from) = (BLOCK_BYTES, Some((Arc::clone(file), offset + done)));
            done += BLOCK_BYTES as u64;
        }
        if self.current.from.is_some() {
            self.put_current()?;
        }
        while done < bytes {
            let rest = usize::try_from(bytes - done).unwrap_or(usize::MAX);
            let buffer = self.buffer(rest);
            let some = buffer.len();
            contents::read(file, offset + done, buffer).map_err(MemoryFails)?;
            self.filled(some)?;
            done += some as u64;
        }
        Ok(Mark(self.number))
    }

    /// Waits until the threads have read all contents ahead of a mark: these may change afterwards.
    pub(super) fn settle(&mut self, Mark(number): Mark) -> io::Result<()> {
        while self.number - (self.pool.under_way.len() as u64) < number && self.write_next()? {}
        Ok(())
    }

    /// Writes all blocks, and the end.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.put_current()?;
        while self.write_next()? {}
        let mut end = [0; HEADER_BYTES];
        end[8..].copy_from_slice(&XxHash64::oneshot(self.number, &[]).to_le_bytes());
        self.out.write_all(&end)?;
        Ok(self.out)
    }

    /// Has the current block worked on, if it has any bytes.
    fn put_current(&mut self) -> io::Result<()> {
        if self.current.length == 0 {
            return Ok(());
        }
        if self.pool.is_full() {
            self.write_next()?;
        }
        let next = self.spare.pop().unwrap_or_default();
        let mut block = std::mem::replace(&mut self.current, next);
        (self.current.length, self.current.from) = (0, None);
        block.number = self.number;
        self.number += 1;
        self.pool.put(block);
        Ok(())
    }

    /// Writes the next block. Returns false if none is under way.
    fn write_next(&mut self) -> io::Result<bool> {
        let Some(block) = self.pool.next().transpose()? else { return Ok(false) };
        self.out.write_all(&block.data)?;
        self.spare.push(block);
        Ok(true)
    }
}

impl<W: Write> Write for BlockWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let buffer = self.buffer(bytes.len());
        let some = buffer.len();
        buffer.copy_from_slice(&bytes[..some]);
        self.filled(some)?;
        Ok(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Reads bytes from blocks.
pub(super) struct BlockReader<R: Read> {
    from: R,
    decoding: Pool,
    /// The blocks whose bytes are written into memory files.
    placing: Pool,
    current: Block,
    /// The bytes of the current block that were read.
    done: usize,
    spare: Vec<Block>,
    number: u64,
    is_over: bool,
}

impl<R: Read> BlockReader<R> {
    pub(super) fn new(from: R) -> Self {
        let (decoding, placing) = (Pool::new(decode, threads_max()), Pool::new(place, threads_max()));
        let (current, done, spare, number, is_over) = Default::default();
        Self { from, decoding, placing, current, done, spare, number, is_over }
    }

    /// Makes sure that the current block has bytes that were not read, unless the end is reached.
    fn advance(&mut self) -> io::Result<()> {
        if self.done < self.current.length {
            return Ok(());
        }
        self.fetch()?;
        if let Some(next) = self.decoding.next().transpose()? {
            let read = std::mem::replace(&mut self.current, next);
            self.done = 0;
            // A block that is written into a memory file has left nothing here.
            if read.length > 0 {
                self.spare.push(read);
            }
        }
        Ok(())
    }

    /// Returns the next bytes, at most so many; none at the end.
    fn some(&mut self, most: usize) -> io::Result<&[u8]> {
        self.advance()?;
        let bytes = &self.current.plain[self.done..self.current.length];
        let bytes = &bytes[..most.min(bytes.len())];
        self.done += bytes.len();
        Ok(bytes)
    }

    /// Reads bytes, so many, into a memory file from `offset` on.
    pub(super) fn contents(&mut self, target: &Arc<Target>, offset: u64, bytes: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            self.advance()?;
            let (rest, length) = (bytes - done, self.current.length as u64);
            if self.done == 0 && (1..=rest).contains(&length) && target.takes_several_writers() {
                self.place_current((Arc::clone(target), offset + done))?;
                done += length;
                continue;
            }
            let some = self.some(usize::try_from(rest).unwrap_or(usize::MAX))?;
            if some.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            target.write(offset + done, some).map_err(MemoryFails)?;
            done += some.len() as u64;
        }
        while self.await_placed()? {}
        Ok(())
    }

    /// Has a thread write the current block into a memory file.
    fn place_current(&mut self, into: (Arc<Target>, u64)) -> io::Result<()> {
        if self.placing.is_full() {
            self.await_placed()?;
        }
        let block = Block { into: Some(into), ..std::mem::take(&mut self.current) };
        self.placing.put(block);
        Ok(())
    }

    /// Waits until the next block is written into its memory file. Returns false if there is none.
    fn await_placed(&mut self) -> io::Result<bool> {
        let Some(block) = self.placing.next().transpose()? else { return Ok(false) };
        self.spare.push(block);
        Ok(true)
    }

    /// Has blocks decoded ahead, until all threads have enough to do or the end is read.
    fn fetch(&mut self) -> io::Result<()> {
        while !self.is_over && !self.decoding.is_full() {
            let mut header = [0; HEADER_BYTES];
            self.from.read_exact(&mut header)?;
            let (lengths, hash) = header.split_at(8);
            let [length, stored] = [&lengths[..4], &lengths[4..]].map(word);
            let hash = u64::from_le_bytes(std::array::from_fn(|at| hash[at]));
            if length == 0 {
                if stored > 0 || hash != XxHash64::oneshot(self.number, &[]) {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                self.is_over = true;
            } else if stored == 0 || stored > length || length > BLOCK_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            } else {
                let mut block = self.spare.pop().unwrap_or_default();
                block.data.resize(stored, 0);
                self.from.read_exact(&mut block.data)?;
                (block.number, block.length, block.hash) = (self.number, length, hash);
                self.number += 1;
                self.decoding.put(block);
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for BlockReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let some = self.some(buffer.len())?;
        buffer[..some.len()].copy_from_slice(some);
        Ok(some.len())
    }
}

/// Returns the number of threads that a pool may have.
fn threads_max() -> usize {
    processors().min(THREADS_MAX)
}

/// Compresses a block, unless that makes it larger, and puts its header before the data. Bytes of a memory file are read first.
fn encode(mut block: Block) -> io::Result<Block> {
    let Block { number, plain, length, data, from, .. } = &mut block;
    if let Some((file, offset)) = from.take() {
        plain.resize(BLOCK_BYTES, 0);
        contents::read(&file, offset, &mut plain[..*length]).map_err(MemoryFails)?;
    }
    let plain = &plain[..*length];
    data.resize(HEADER_BYTES + get_maximum_output_size(plain.len()), 0);
    let compressed = compress_into(plain, &mut data[HEADER_BYTES..]).map_err(io::Error::other)?;
    let stored = compressed.min(plain.len());
    if compressed >= plain.len() {
        data[HEADER_BYTES..][..stored].copy_from_slice(plain);
    }
    data.truncate(HEADER_BYTES + stored);
    // A block is far smaller than 4 GiB.
    data[..4].copy_from_slice(&(plain.len() as u32).to_le_bytes());
    data[4..8].copy_from_slice(&(stored as u32).to_le_bytes());
    data[8..16].copy_from_slice(&XxHash64::oneshot(*number, plain).to_le_bytes());
    Ok(block)
}

/// Makes the bytes of a block of its data.
fn decode(mut block: Block) -> io::Result<Block> {
    let Block { number, plain, data, length, hash, .. } = &mut block;
    // Memory that is there is not filled again.
    plain.resize(plain.len().max(*length), 0);
    let plain = &mut plain[..*length];
    let is_whole = match data.len() == *length {
        true => {
            plain.copy_from_slice(data);
            true
        }
        false => decompress_into(data, plain).is_ok_and(|came| came == *length),
    };
    match is_whole && XxHash64::oneshot(*number, plain) == *hash {
        true => Ok(block),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Writes the bytes of a block into its memory file.
fn place(mut block: Block) -> io::Result<Block> {
    if let Some((target, offset)) = block.into.take() {
        target.write(offset, &block.plain[..block.length]).map_err(MemoryFails)?;
    }
    Ok(block)
}

/// Returns the number that four bytes are.
fn word(bytes: &[u8]) -> usize {
    u32::from_le_bytes(std::array::from_fn(|at| bytes[at])) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that can be compressed, and those that cannot, by turns.
    fn bytes(count: usize) -> Vec<u8> {
        let mut mixed = 39u64;
        let byte = |at: usize| {
            mixed ^= mixed << 13;
            mixed ^= mixed >> 7;
            mixed ^= mixed << 17;
            if (at / BLOCK_BYTES).is_multiple_of(2) { mixed as u8 } else { (at / 999) as u8 }
        };
        (0..count).map(byte).collect()
    }

    fn written(bytes: &[u8]) -> Vec<u8> {
        let mut writer = BlockWriter::new(Vec::new());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    fn read(written: &[u8]) -> io::Result<Vec<u8>> {
        let (mut all, mut reader) = (Vec::new(), BlockReader::new(written));
        reader.read_to_end(&mut all)?;
        match reader.from.is_empty() {
            true => Ok(all),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    #[test]
    fn bytes_come_back_in_their_order_however_many_there_are() {
        for count in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 40 * BLOCK_BYTES + 77] {
            let bytes = bytes(count);
            let written = written(&bytes);
            assert!(read(&written).unwrap() == bytes, "{count} bytes");
            assert!(count < 2 * BLOCK_BYTES || written.len() < count * 2 / 3, "{} of {count}", written.len());
        }
    }

    /// A memory file with these bytes.
    fn memory(bytes: &[u8]) -> Arc<OwnedFd> {
        let file = shm::create("blocks", bytes.len() as u64).unwrap();
        Target::new(&file, true).unwrap().write(0, bytes).unwrap();
        Arc::new(file)
    }

    /// Reads bytes, so many, into a memory file from `offset` on.
    fn fill(
        reader: &mut BlockReader<&[u8]>,
        file: &Arc<OwnedFd>,
        offset: u64,
        bytes: usize,
    ) -> io::Result<()> {
        reader.contents(&Arc::new(Target::new(file, false).unwrap()), offset, bytes as u64)
    }

    /// Bytes of a memory file.
    fn filled(file: &Arc<OwnedFd>, count: usize) -> Vec<u8> {
        let mut all = vec![0; count];
        contents::read(file, 0, &mut all).unwrap();
        all
    }

    #[test]
    fn contents_of_memory_pass_between_other_bytes_however_many_there_are() {
        const MOST: usize = 40 * BLOCK_BYTES + 77;
        let counts = [MOST, 1, BLOCK_BYTES - 1, 0, BLOCK_BYTES, 3 * BLOCK_BYTES + 1, 8];
        let (all, old) = (bytes(MOST + 4096), memory(&bytes(MOST + 4096)));
        let (mut writer, mut mark) = (BlockWriter::new(Vec::new()), None);
        for count in counts {
            writer.write_all(&count.to_le_bytes()).unwrap();
            mark = Some(writer.contents(&old, 4096, count as u64).unwrap());
        }
        writer.settle(mark.unwrap()).unwrap();
        Target::new(&old, false).unwrap().write(0, &vec![0; MOST + 4096]).unwrap();
        let written = writer.finish().unwrap();
        let mut reader = BlockReader::new(&written[..]);
        for count in counts {
            let mut word = [0; 8];
            reader.read_exact(&mut word).unwrap();
            assert_eq!(usize::from_le_bytes(word), count);
            let new = memory(&vec![7; count + 16]);
            fill(&mut reader, &new, 8, count).unwrap();
            let came = filled(&new, count + 16);
            assert!(came[8..][..count] == all[4096..][..count], "{count} bytes");
            assert!(came[..8] == [7; 8] && came[8 + count..] == [7; 8], "{count} bytes");
        }
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn contents_ahead_of_a_mark_may_change_once_it_is_passed() {
        let all = bytes(3 * BLOCK_BYTES + 4096);
        let [first, second] = [memory(&all), memory(&all)];
        let mut writer = BlockWriter::new(Vec::new());
        let mark = writer.contents(&first, 0, all.len() as u64).unwrap();
        writer.contents(&second, 0, all.len() as u64).unwrap();
        writer.settle(mark).unwrap();
        assert!(writer.number - writer.pool.under_way.len() as u64 >= mark.0);
        Target::new(&first, false).unwrap().write(0, &vec![0; all.len()]).unwrap();
        assert!(read(&writer.finish().unwrap()).unwrap() == [&all[..], &all].concat());
    }

    #[test]
    fn memory_that_is_too_short_is_told_from_a_file_that_fails() {
        const MOST: usize = 5 * BLOCK_BYTES;
        let [short, almost, long] = [4096, MOST - 1, MOST].map(|bytes| memory(&vec![1; bytes]));
        let fails = |error: io::Error| error.downcast::<MemoryFails>().is_ok();
        for bytes in [8192, BLOCK_BYTES as u64] {
            let mut writer = BlockWriter::new(Vec::new());
            let written = writer.contents(&short, 0, bytes).and_then(|mark| writer.settle(mark));
            assert!(fails(written.unwrap_err()), "{bytes} bytes");
        }
        let mut writer = BlockWriter::new(Vec::new());
        writer.contents(&long, 0, MOST as u64).unwrap();
        let written = writer.finish().unwrap();
        let read = |bytes, file| fill(&mut BlockReader::new(&written[..]), file, 0, bytes);
        for too_short in [&short, &almost] {
            assert!(fails(read(MOST, too_short).unwrap_err()));
        }
        let more = read(MOST + 1, &memory(&vec![1; MOST + 1])).unwrap_err();
        assert_eq!(more.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn no_byte_of_a_block_can_be_another_and_no_block_takes_the_place_of_another() {
        let (first, second) = (written(b"the first"), written(b"another"));
        for at in 0..first.len() {
            let mut other = first.clone();
            other[at] ^= 0x40;
            assert!(read(&other).is_err(), "byte {at}");
            assert!(read(&first[..at]).is_err(), "{at} bytes");
        }
        let block = |written: &[u8]| written[..written.len() - HEADER_BYTES].to_vec();
        let end = |written: &[u8]| written[written.len() - HEADER_BYTES..].to_vec();
        assert!(read(&[block(&first), block(&second), end(&second)].concat()).is_err());
        assert!(read(&end(&first)).is_err());
    }

    #[test]
    fn a_block_that_lies_about_its_length_is_no_block() {
        for (length, stored) in [(BLOCK_BYTES as u32 + 1, 1), (8, 9), (8, 0), (0, 1), (u32::MAX, u32::MAX)] {
            let mut header = [0; HEADER_BYTES];
            header[..4].copy_from_slice(&length.to_le_bytes());
            header[4..8].copy_from_slice(&stored.to_le_bytes());
            assert!(read(&[&header[..], &[0; 64]].concat()).is_err(), "{length} and {stored}");
        }
    }

    #[test]
    fn without_a_thread_blocks_are_worked_on_at_once() {
        let mut pool = Pool::new(encode, 0);
        assert!(pool.next().is_none());
        for number in 0..2 {
            pool.put(Block { number, plain: b"some bytes".to_vec(), length: 10, ..Block::default() });
        }
        assert!(pool.is_full());
        for number in 0..2 {
            assert_eq!(pool.next().unwrap().unwrap().number, number);
        }
    }
}
