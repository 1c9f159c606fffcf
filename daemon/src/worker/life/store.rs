//! The contents of a context that is swapped out, in the memory of its worker without a driver.
//!
//! The kernel takes longer to clear a new page than a processor takes to fill it, and one processor copies slower than a GPU. So several threads copy
//! each part.

use crate::worker::backend::Contents;
use outside::HostMemory;
use parking_lot::Mutex;
use shm::Mapping;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use vulkan::{ContextLost, HostError, MemoryFile};

/// At most so many threads copy one part; two parts are copied at a time.
const THREADS_MAX: usize = 8;
/// A thread copies at least so many bytes: starting the thread takes much less time.
const THREAD_BYTES: u64 = 1 << 20;

/// The contents that have come so far.
pub(super) struct Store {
    /// The memory that they take.
    host: HostMemory,
    /// The memory for all contents, once the first part comes.
    memory: Option<Arc<Mapping>>,
    /// The bytes that have come, or are being copied.
    came: u64,
}

/// Contents on their way into the store or out of it.
pub(super) struct StoredContents {
    bytes: u64,
    store: Arc<Mutex<Store>>,
    staging: Option<Arc<Mapping>>,
    /// The threads of each part that the worker has not waited for yet; the oldest part comes first.
    running: VecDeque<Vec<JoinHandle<()>>>,
    threads: usize,
}

/// A copy from one place to another.
#[derive(Clone)]
struct Copy {
    from: Arc<Mapping>,
    from_at: u64,
    to: Arc<Mapping>,
    to_at: u64,
    bytes: u64,
}

impl StoredContents {
    /// Makes contents of so many bytes, which this store holds or is to hold.
    pub(super) fn new(bytes: u64, store: Arc<Mutex<Store>>) -> Self {
        let threads = waiting::processors::processors().min(THREADS_MAX);
        Self { bytes, store, staging: None, running: VecDeque::new(), threads }
    }

    fn staging(&self) -> Result<Arc<Mapping>, ContextLost> {
        self.staging.clone().ok_or_else(|| ContextLost::daemon("contents without pages"))
    }

    /// Begins a copy of a part that is inside both mappings.
    fn begin(&mut self, copy: &Copy) -> Result<(), ContextLost> {
        let is_inside =
            copy.from.contains(copy.from_at, copy.bytes) && copy.to.contains(copy.to_at, copy.bytes);
        if !is_inside {
            return Err(ContextLost::daemon("contents beyond their pages"));
        }
        let pieces = copy.pieces(self.threads as u64);
        self.running.push_back(pieces.filter_map(|piece| piece.begin(self.threads > 1)).collect());
        Ok(())
    }
}

impl Copy {
    /// Returns the pieces that so many threads copy, at most.
    fn pieces(&self, threads: u64) -> impl Iterator<Item = Self> {
        // Each thread copies whole words, so that no other thread writes a part of the same word.
        let each = self.bytes.div_ceil(threads).max(THREAD_BYTES).next_multiple_of(8);
        (0..self.bytes.div_ceil(each)).map(move |index| {
            let done = index * each;
            let (from_at, to_at) = (self.from_at + done, self.to_at + done);
            Self { from_at, to_at, bytes: each.min(self.bytes - done), ..self.clone() }
        })
    }

    /// Copies the bytes, in a thread if that is wanted and a thread can be started.
    fn begin(self, in_thread: bool) -> Option<JoinHandle<()>> {
        let copy = self.clone();
        let begun = in_thread.then(|| thread::Builder::new().name("copy".into()).spawn(move || copy.run()));
        let begun = begun.and_then(Result::ok);
        if begun.is_none() {
            self.run();
        }
        begun
    }

    fn run(&self) {
        let copied = self.from.copy_to(self.from_at, &self.to, self.to_at, self.bytes);
        debug_assert!(copied.is_ok(), "it is inside both");
    }
}

impl Contents for StoredContents {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn stage(&mut self, file: &Arc<MemoryFile>, bytes: u64) -> Result<(), ContextLost> {
        let mapping = Mapping::new(file.as_ref(), bytes);
        self.staging =
            Some(Arc::new(mapping.map_err(|error| HostError::refused("no pages for contents", error))?));
        Ok(())
    }

    fn read(&mut self, bytes: Range<u64>, staged_at: u64) -> Result<(), ContextLost> {
        let from = {
            let store = self.store.lock();
            store.memory.clone().filter(|_| bytes.end <= store.came)
        };
        let from = from.ok_or_else(|| ContextLost::broken("contents that never came"))?;
        let (to, length) = (self.staging()?, bytes.end - bytes.start);
        self.begin(&Copy { from, from_at: bytes.start, to, to_at: staged_at, bytes: length })
    }

    fn write(&mut self, bytes: Range<u64>, staged_at: u64) -> Result<(), ContextLost> {
        let to = self.store.lock().room_for(&bytes, self.bytes)?;
        let (from, length) = (self.staging()?, bytes.end - bytes.start);
        self.begin(&Copy { from, from_at: staged_at, to, to_at: bytes.start, bytes: length })
    }

    fn finish(&mut self) -> Result<(), ContextLost> {
        let threads = self.running.pop_front().into_iter().flatten();
        // Waits for each thread, even if one has panicked: threads copy to pages that may be given away next.
        let failed = threads.filter_map(|thread| thread.join().err()).count();
        (failed == 0)
            .then_some(())
            .ok_or_else(|| ContextLost::daemon("a thread that copies contents panicked"))
    }
}

impl Drop for StoredContents {
    fn drop(&mut self) {
        // Once this value is dropped, the pages belong to other owners.
        while !self.running.is_empty() {
            let _ = self.finish();
        }
    }
}

impl Store {
    /// Makes a store that has no contents yet, and takes no more than the host's memory has room for.
    pub(super) fn within(host: HostMemory) -> Self {
        Self { host, memory: None, came: 0 }
    }

    /// Returns the memory for the next of `all` bytes.
    ///
    /// # Errors
    ///
    /// The bytes are not the next, or the host has not enough memory.
    fn room_for(&mut self, bytes: &Range<u64>, all: u64) -> Result<Arc<Mapping>, ContextLost> {
        if bytes.start != self.came || bytes.end > all {
            return Err(ContextLost::broken("contents in another order"));
        }
        self.look(bytes.end - bytes.start, all)?;
        let memory = match &self.memory {
            Some(memory) => Arc::clone(memory),
            None => {
                let memory = Mapping::anonymous(all);
                Arc::new(memory.map_err(|error| {
                    ContextLost::from(HostError::NoMemory { bytes: all, why: error.to_string() })
                })?)
            }
        };
        self.came = bytes.end;
        Ok(Arc::clone(self.memory.insert(memory)))
    }

    /// Looks whether the host still has memory for so many bytes: other processes may have taken it since the context was admitted.
    fn look(&self, bytes: u64, all: u64) -> Result<(), ContextLost> {
        if self.host.room().is_none_or(|room| bytes <= room) {
            return Ok(());
        }
        Err(HostError::NoneToSpare { held: self.came, of: all }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use vulkan::Piece;

    const SLOT: u64 = 5 << 20;

    fn store() -> Arc<Mutex<Store>> {
        Arc::new(Mutex::new(Store::within(HostMemory::default())))
    }

    fn staged(contents: &mut StoredContents) -> (Arc<MemoryFile>, Mapping) {
        let file = Arc::new(MemoryFile::new(shm::create("slot", SLOT).unwrap(), Piece::uncounted()));
        contents.stage(&file, SLOT).unwrap();
        let mapping = Mapping::new(file.as_ref(), SLOT).unwrap();
        (file, mapping)
    }

    #[test]
    fn contents_come_in_their_order_and_go_as_they_came() {
        for threads in [1, 3] {
            let (store, all) = (store(), 2 * SLOT - 4096);
            let pattern: Vec<u8> = (0..all).map(|at| (at * 7 % 251) as u8).collect();
            let mut contents = StoredContents::new(all, Arc::clone(&store));
            contents.threads = threads;
            let (_file, slot) = staged(&mut contents);
            for part in [0..SLOT, SLOT..all] {
                slot.copy_in(0, &pattern[part.start as usize..part.end as usize]).unwrap();
                contents.write(part, 0).unwrap();
                contents.finish().unwrap();
            }
            assert!(contents.write(all..all + 4096, 0).is_err(), "more than there is");
            let mut again = StoredContents::new(all, store);
            again.threads = threads;
            let (_file, slot) = staged(&mut again);
            let middle = 4096..4096 + SLOT;
            again.read(middle.clone(), 0).unwrap();
            again.finish().unwrap();
            let mut found = vec![0; SLOT as usize];
            slot.copy_out(0, &mut found).unwrap();
            assert!(found == pattern[middle.start as usize..middle.end as usize]);
        }
    }

    #[test]
    fn no_more_comes_than_the_host_has_memory_for() {
        let account = |kib: u64| format!("MemAvailable: {kib:9} kB\n");
        let file = File::from(shm::create("meminfo", 4096).unwrap());
        let says = |kib| file.write_all_at(account(kib).as_bytes(), 0).unwrap();
        let mut store = Store::within(HostMemory::in_file(file.try_clone().unwrap()));
        says(1 << 20);
        store.room_for(&(0..SLOT), 2 * SLOT).unwrap();
        says(0);
        let refused = store.room_for(&(SLOT..2 * SLOT), 2 * SLOT).unwrap_err().to_string();
        assert!(refused.contains("5.0MiB of 10.0MiB"), "{refused}");
        says(1 << 20);
        store.room_for(&(SLOT..2 * SLOT), 2 * SLOT).unwrap();
    }

    #[test]
    fn what_never_came_or_has_no_place_is_refused() {
        let mut contents = StoredContents::new(2 * SLOT, store());
        assert!(contents.write(0..4096, 0).is_err(), "nothing is staged");
        let mut contents = StoredContents::new(2 * SLOT, store());
        let (_file, _slot) = staged(&mut contents);
        assert!(contents.read(0..4096, 0).is_err());
        assert!(contents.write(4096..8192, 0).is_err(), "not the next");
        assert!(contents.write(0..8192, SLOT - 4096).is_err(), "beyond the slot");
    }
}
