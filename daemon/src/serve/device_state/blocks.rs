//! Blocks of a state: parts of its bytes that are compressed and have a checksum each, so that several threads work on them at a time.
//!
//! | bytes | content |
//! | --- | --- |
//! | 4 | bytes of the block, little-endian, at most [`BLOCK_BYTES`]; 0 for the end |
//! | 4 | bytes of its data; as many as the block has, if these are not compressed |
//! | 8 | XXH64 of the block; the seed is the number of the block, so that no block can take the place of another |
//! | … | the data (LZ4's block format) |

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use twox_hash::XxHash64;
use waiting::processors::processors;

/// Bytes of a block, at most.
const BLOCK_BYTES: usize = 1 << 20;
const HEADER_BYTES: usize = 16;
/// Threads that work on blocks, at most.
const THREADS_MAX: usize = 8;

/// A block on its way through a thread, with memory that is used again.
#[derive(Debug, Default)]
struct Block {
    number: u64,
    /// The bytes of the block.
    plain: Vec<u8>,
    /// Its data, compressed or not. A writer's data begin with the header.
    data: Vec<u8>,
    /// What the header says of the plain bytes: their number and their checksum.
    length: usize,
    hash: u64,
}

/// Threads that work on blocks. They end by themselves when this value is gone.
struct Pool {
    work: fn(Block) -> io::Result<Block>,
    /// None if no thread could be started: then each block is worked on at once.
    jobs: Option<Sender<(Block, SyncSender<io::Result<Block>>)>>,
    /// The blocks under way, in their order.
    under_way: VecDeque<Receiver<io::Result<Block>>>,
    at_once: usize,
}

impl Pool {
    fn new(work: fn(Block) -> io::Result<Block>) -> Self {
        let count = processors().min(THREADS_MAX);
        let (jobs, taken) = channel::<(Block, SyncSender<io::Result<Block>>)>();
        let taken = Arc::new(Mutex::new(taken));
        let run = |taken: Arc<Mutex<Receiver<(Block, SyncSender<_>)>>>| {
            move || loop {
                let next = taken.lock().recv();
                let Ok((block, done)) = next else { return };
                // If nothing waits for the block, the transfer is over.
                let _ = done.send(work(block));
            }
        };
        let threads = (0..count).map(|_| {
            let thread = std::thread::Builder::new().name("blocks".into());
            thread.spawn(run(Arc::clone(&taken))).is_ok()
        });
        let started = threads.filter(|is_started| *is_started).count();
        let jobs = (started > 0).then_some(jobs);
        Self { work, jobs, under_way: VecDeque::new(), at_once: 2 * started.max(1) }
    }

    /// Returns whether all threads have enough to do.
    fn is_full(&self) -> bool {
        self.under_way.len() >= self.at_once
    }

    /// Has a block worked on.
    fn put(&mut self, block: Block) {
        let (done, result) = sync_channel(1);
        let left = match &self.jobs {
            Some(jobs) => jobs.send((block, done)).err().map(|error| error.0),
            None => Some((block, done)),
        };
        if let Some((block, done)) = left {
            let _ = done.send((self.work)(block));
        }
        self.under_way.push_back(result);
    }

    /// Waits for the next block. Returns none if none is under way.
    fn next(&mut self) -> Option<io::Result<Block>> {
        let result = self.under_way.pop_front()?;
        Some(result.recv().unwrap_or_else(|_| Err(io::Error::other("a thread that works on blocks is gone"))))
    }
}

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
        Self { out, pool: Pool::new(encode), current, spare, number }
    }

    /// Writes all blocks, and the end.
    pub(super) fn finish(mut self) -> io::Result<W> {
        if !self.current.plain.is_empty() {
            self.put_current()?;
        }
        while self.write_next()? {}
        let mut end = [0; HEADER_BYTES];
        end[8..].copy_from_slice(&XxHash64::oneshot(self.number, &[]).to_le_bytes());
        self.out.write_all(&end)?;
        Ok(self.out)
    }

    fn put_current(&mut self) -> io::Result<()> {
        if self.pool.is_full() {
            self.write_next()?;
        }
        let next = self.spare.pop().unwrap_or_default();
        let mut block = std::mem::replace(&mut self.current, next);
        self.current.plain.clear();
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
        let some = bytes.len().min(BLOCK_BYTES - self.current.plain.len());
        self.current.plain.extend_from_slice(&bytes[..some]);
        if self.current.plain.len() == BLOCK_BYTES {
            self.put_current()?;
        }
        Ok(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Reads bytes from blocks.
pub(super) struct BlockReader<R: Read> {
    from: R,
    pool: Pool,
    current: Block,
    /// The bytes of the current block that were read.
    done: usize,
    spare: Vec<Block>,
    number: u64,
    is_over: bool,
}

impl<R: Read> BlockReader<R> {
    pub(super) fn new(from: R) -> Self {
        let (current, done, spare, number, is_over) = Default::default();
        Self { from, pool: Pool::new(decode), current, done, spare, number, is_over }
    }

    /// Has blocks decoded ahead, until all threads have enough to do or the end is read.
    fn fetch(&mut self) -> io::Result<()> {
        while !self.is_over && !self.pool.is_full() {
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
                self.pool.put(block);
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
        if self.done == self.current.plain.len() {
            self.fetch()?;
            let Some(next) = self.pool.next().transpose()? else { return Ok(0) };
            self.spare.push(std::mem::replace(&mut self.current, next));
            self.done = 0;
        }
        let some = buffer.len().min(self.current.plain.len() - self.done);
        buffer[..some].copy_from_slice(&self.current.plain[self.done..][..some]);
        self.done += some;
        Ok(some)
    }
}

/// Compresses a block, unless that makes it larger, and puts its header before the data.
fn encode(mut block: Block) -> io::Result<Block> {
    let Block { number, plain, data, .. } = &mut block;
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
    let Block { number, plain, data, length, hash } = &mut block;
    plain.resize(*length, 0);
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
        let mut pool = Pool { work: encode, jobs: None, under_way: VecDeque::new(), at_once: 2 };
        assert!(pool.next().is_none());
        pool.put(Block { plain: b"some bytes".to_vec(), ..Block::default() });
        assert_eq!(pool.next().unwrap().unwrap().plain, b"some bytes");
    }
}
