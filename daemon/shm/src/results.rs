//! The words in which a context's driver looks for the results of its fences, as its worker tells the device process.
//!
//! Mesa before 26.2 may poll only such a word (`vulkan::submit::lost` has the details). Once the worker is gone, no worker writes the word, so the
//! device process does. The worker reports the words in a shared table, because command buffers are recorded all the time and workers hardly ever
//! die. Only the worker writes the table, and the device process reads it when the worker is gone. A worker that a guest has taken over can name any
//! word, so the reader checks whether the context sees the memory.

use super::{Mapping, OutOfBounds};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

/// The most words that the table can name at a time; words beyond that are not answered.
pub(super) const RESULT_WORDS_MAX: u64 = 4096;

/// Bytes of an entry: a state, the word's index in its memory, and the memory.
const ENTRY: u64 = 16;
const FREE: u32 = 0;
const USED: u32 = 1;

/// The place of a word: the number of a piece of memory, and a byte offset in it, a multiple of 4.
pub type ResultWord = (u64, u64);

/// The table, as either side sees it.
#[derive(Debug)]
pub struct ResultWords {
    mapping: Arc<Mapping>,
    /// Byte offset of the first entry.
    start: u64,
    free: Mutex<Free>,
}

/// Entries that the worker can use.
#[derive(Debug, Default)]
struct Free {
    /// Entries that were used before.
    again: Vec<u64>,
    /// The first entry that was never used, like all behind it.
    fresh: u64,
}

/// A word that the device process knows of while this lives.
#[derive(Debug)]
pub struct Told {
    table: Arc<ResultWords>,
    entry: u64,
}

impl ResultWords {
    /// Bytes of a table.
    pub const SIZE: u64 = RESULT_WORDS_MAX * ENTRY;

    /// Opens the table at `start`, which is empty unless its worker has written to it.
    pub(super) fn new(mapping: Arc<Mapping>, start: u64) -> Self {
        Self { mapping, start, free: Mutex::default() }
    }

    /// Names a word in the table; none if there is no room, or the offset is no word's.
    pub fn tell(self: &Arc<Self>, (memory, offset): ResultWord) -> Option<Told> {
        let index = u32::try_from(offset / 4).ok().filter(|_| offset.is_multiple_of(4))?;
        let entry = self.free.lock().take()?;
        let told = Told { table: Arc::clone(self), entry };
        let (index, memory) = (index.to_le_bytes(), memory.to_le_bytes());
        let at = self.at(entry);
        // The worker may die at any moment: the entry counts once it is complete.
        let written =
            self.mapping.copy_in(at + 4, &index).and_then(|()| self.mapping.copy_in(at + 8, &memory));
        written.and_then(|()| self.set_state(entry, USED)).ok().map(|()| told)
    }

    /// Returns all words, as the worker has left them.
    pub fn told(&self) -> Vec<ResultWord> {
        (0..RESULT_WORDS_MAX).filter_map(|entry| self.entry(entry)).collect()
    }

    fn entry(&self, entry: u64) -> Option<ResultWord> {
        let mut bytes = [0; ENTRY as usize];
        self.mapping.copy_out(self.at(entry), &mut bytes).ok()?;
        let [head, tail] = bytes.as_chunks::<8>().0 else { return None };
        let [state, index] = head.as_chunks::<4>().0 else { return None };
        let word = (u64::from_le_bytes(*tail), u64::from(u32::from_le_bytes(*index)) * 4);
        (u32::from_le_bytes(*state) == USED).then_some(word)
    }

    fn set_state(&self, entry: u64, state: u32) -> Result<(), OutOfBounds> {
        self.mapping.word(self.at(entry)).map(|word| word.store(state, Release))
    }

    fn at(&self, entry: u64) -> u64 {
        self.start + entry * ENTRY
    }
}

impl Free {
    fn take(&mut self) -> Option<u64> {
        self.again.pop().or_else(|| {
            let fresh = self.fresh;
            self.fresh = fresh.checked_add(1).filter(|next| *next <= RESULT_WORDS_MAX)?;
            Some(fresh)
        })
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // The entry lies inside the table.
        let _ = self.table.set_state(self.entry, FREE);
        self.table.free.lock().again.push(self.entry);
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::create;

    const START: u64 = 64;

    fn both_sides() -> (Arc<ResultWords>, ResultWords) {
        let file = create("table", START + ResultWords::SIZE).unwrap();
        let side =
            || ResultWords::new(Arc::new(Mapping::new(&file, START + ResultWords::SIZE).unwrap()), START);
        (Arc::new(side()), side())
    }

    #[test]
    fn words_are_known_while_they_are_told() {
        let (worker, device) = both_sides();
        assert_eq!(device.told(), []);
        let (a, b) = ((7, 4), (u64::MAX, u64::from(u32::MAX) * 4));
        let first = worker.tell(a).unwrap();
        let second = worker.tell(b).unwrap();
        assert_eq!(device.told(), [a, b]);
        drop(first);
        assert_eq!(device.told(), [b]);
        drop(second);
        assert_eq!(device.told(), []);
    }

    #[test]
    fn what_is_no_word_or_has_no_room_is_not_told() {
        let (worker, device) = both_sides();
        assert!(worker.tell((1, 2)).is_none());
        assert!(worker.tell((1, 1 << 34)).is_none());
        let mut all: Vec<_> = (0..RESULT_WORDS_MAX).map(|at| worker.tell((1, 4 * at)).unwrap()).collect();
        assert!(worker.tell((2, 0)).is_none());
        all.pop();
        assert!(worker.tell((2, 0)).is_some());
        assert_eq!(device.told().len() as u64, RESULT_WORDS_MAX - 1);
    }
}
