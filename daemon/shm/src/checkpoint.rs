//! The mark of a context's checkpoint: whether what a worker has written down of its context is still all that the guest has made of it.
//!
//! A checkpoint is followed by a [journal](crate::journal), if the worker has one. Before the worker executes anything that is not noted there, it takes
//! the mark away. So a checkpoint whose mark is there is complete together with its journal, however the worker has ended.
//! A worker that was taken over can leave the mark where it does not belong: then its own context is built up as it was before.

use super::Word;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Something was executed that neither a checkpoint nor its journal has.
const STALE: u32 = 0;
/// No checkpoint has everything, and nothing was executed since the device process looked last.
const WATCHED: u32 = 1;
/// The checkpoint of the number above these bits is complete, with its journal.
const CURRENT: u32 = 2;
const STATE: u32 = 3;
/// One more checkpoint is being written, and nothing has changed since.
const WRITING: u32 = 4;
const NUMBER_AT: u32 = 3;

/// The number of the last checkpoint; the first follows again.
const NUMBER_MAX: u32 = u32::MAX >> NUMBER_AT;

/// The mark, as either side sees it. It begins without a checkpoint.
#[derive(Debug)]
pub struct CheckpointMark(Word);

impl CheckpointMark {
    /// The number that follows that of a checkpoint, which is not 0.
    pub fn next_number(number: u32) -> u32 {
        number % NUMBER_MAX + 1
    }

    pub(super) fn new(word: Word) -> Self {
        Self(word)
    }

    /// The worker begins to write a checkpoint. An older one counts until it is written.
    pub fn begins(&self) {
        self.0.set_bits(WRITING, SeqCst);
    }

    /// The worker has written the checkpoint of this number, from 1 to 2^29 - 1. Returns whether it is complete, as nothing has changed since [`Self::begins`].
    pub fn ends(&self, number: u32) -> bool {
        let seen = self.0.load(SeqCst);
        seen & WRITING != 0 && self.0.change(seen, number << NUMBER_AT | CURRENT)
    }

    /// The worker writes no checkpoint after all.
    pub fn gives_up(&self) {
        self.0.clear_bits(WRITING, SeqCst);
    }

    /// The worker is about to execute something that no journal has, or something has changed.
    #[inline]
    pub fn changes(&self) {
        if self.0.load(Relaxed) != STALE {
            self.0.store(STALE, SeqCst);
        }
    }

    /// The worker is about to execute something. Returns the number of the checkpoint that is complete with its journal, if one is, where it may be noted; otherwise
    /// there is no mark.
    #[inline]
    pub fn executes(&self) -> Option<u32> {
        match self.0.load(Relaxed) {
            STALE => None,
            seen if seen & STATE == CURRENT => Some(seen >> NUMBER_AT),
            _ => {
                self.0.store(STALE, SeqCst);
                None
            }
        }
    }

    /// Returns the number of the checkpoint that is complete with its journal, if one is. To be asked by the worker.
    #[inline]
    pub fn number(&self) -> Option<u32> {
        let seen = self.0.load(Relaxed);
        (seen & STATE == CURRENT).then_some(seen >> NUMBER_AT)
    }

    /// The device process looks. Returns whether nothing was executed since it looked last, but for what a journal has.
    pub fn was_quiet(&self) -> bool {
        !self.0.change(STALE, WATCHED)
    }

    /// Returns the number of the last checkpoint, if that is complete, and has all that was executed or the journal behind it has.
    pub fn current(&self) -> Option<u32> {
        let seen = self.0.load(SeqCst);
        (seen & STATE == CURRENT).then_some(seen >> NUMBER_AT)
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::StatusPage;

    #[test]
    fn a_checkpoint_is_current_until_something_is_executed_and_never_if_that_was_before_its_end() {
        let (ours, file) = StatusPage::create().unwrap();
        let theirs = StatusPage::open(&file).unwrap();
        let (ours, theirs) = (ours.checkpoint(), theirs.checkpoint());
        assert!(ours.current().is_none() && !theirs.ends(1), "none was begun");
        theirs.begins();
        assert_eq!(ours.current(), None);
        assert!(theirs.ends(1) && ours.current() == Some(1) && !theirs.ends(2));
        theirs.changes();
        assert_eq!((ours.current(), theirs.number()), (None, None));
        theirs.begins();
        theirs.changes();
        assert!(!theirs.ends(2) && ours.current().is_none());
        theirs.begins();
        theirs.gives_up();
        assert!(!theirs.ends(2));
    }

    #[test]
    fn an_older_checkpoint_counts_until_a_newer_one_is_written() {
        let (ours, file) = StatusPage::create().unwrap();
        let theirs = StatusPage::open(&file).unwrap();
        let (ours, theirs) = (ours.checkpoint(), theirs.checkpoint());
        theirs.begins();
        assert!(theirs.ends(NUMBER_MAX));
        theirs.begins();
        assert_eq!((ours.current(), theirs.number()), (Some(NUMBER_MAX), Some(NUMBER_MAX)));
        let next = CheckpointMark::next_number(NUMBER_MAX);
        assert!(next == 1 && theirs.ends(next));
        assert_eq!(ours.current(), Some(1));
        theirs.begins();
        theirs.gives_up();
        assert_eq!(ours.current(), Some(1));
        theirs.begins();
        theirs.changes();
        assert!(!theirs.ends(2) && ours.current().is_none(), "neither has everything");
    }

    #[test]
    fn nothing_is_executed_between_two_looks_or_the_second_one_sees_it() {
        let (ours, file) = StatusPage::create().unwrap();
        let theirs = StatusPage::open(&file).unwrap();
        let (ours, theirs) = (ours.checkpoint(), theirs.checkpoint());
        assert!(!ours.was_quiet() && ours.was_quiet() && ours.was_quiet());
        theirs.changes();
        assert!(!ours.was_quiet() && ours.was_quiet() && ours.current().is_none());
        theirs.begins();
        assert!(theirs.ends(1) && ours.was_quiet() && ours.current().is_some(), "a look takes nothing away");
    }
}
