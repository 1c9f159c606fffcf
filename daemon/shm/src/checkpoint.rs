//! The mark of a context's checkpoint: it says whether the checkpoint still has all that the guest has made in the context.
//!
//! A [journal](crate::journal) follows a checkpoint, if the worker has one. Before the worker executes a command that the journal does not get, it
//! removes the mark. So a checkpoint that has its mark is complete together with its journal, however the worker has ended. A worker that was taken
//! over can leave a false mark: then its own context is built up in an older state.

use super::Word;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A command was executed that neither a checkpoint nor its journal has.
const STALE: u32 = 0;
/// No checkpoint has everything, and no command was executed since the device process looked last.
const WATCHED: u32 = 1;
/// The checkpoint whose number is above these bits is complete, with its journal.
const CURRENT: u32 = 2;
const STATE: u32 = 3;
/// Another checkpoint is being written, and the context has not changed since that began.
const WRITING: u32 = 4;
const NUMBER_AT: u32 = 3;

/// The number of the last checkpoint; the first number follows again.
const NUMBER_MAX: u32 = u32::MAX >> NUMBER_AT;

/// The mark, as either side sees it. It begins without a checkpoint.
#[derive(Debug)]
pub struct CheckpointMark(Word);

impl CheckpointMark {
    /// Returns the number that follows the number of a checkpoint, which is not 0.
    pub fn next_number(number: u32) -> u32 {
        number % NUMBER_MAX + 1
    }

    pub(super) fn new(word: Word) -> Self {
        Self(word)
    }

    /// Notes that the worker begins to write a checkpoint. An older one counts until the new one is written.
    pub fn begins(&self) {
        self.0.set_bits(WRITING, SeqCst);
    }

    /// Notes that the worker has written the checkpoint of this number, 1 to 2^29 - 1. Returns whether nothing has changed since [`Self::begins`].
    pub fn ends(&self, number: u32) -> bool {
        let seen = self.0.load(SeqCst);
        seen & WRITING != 0 && self.0.change(seen, number << NUMBER_AT | CURRENT)
    }

    /// Notes that the worker writes no checkpoint after all.
    pub fn gives_up(&self) {
        self.0.clear_bits(WRITING, SeqCst);
    }

    /// Removes the mark: the worker is about to execute a command that no journal has, or the context has changed.
    #[inline]
    pub fn changes(&self) {
        if self.0.load(Relaxed) != STALE {
            self.0.store(STALE, SeqCst);
        }
    }

    /// Returns, when the worker is about to execute a command, the number of the checkpoint that is complete with its journal: then the command may
    /// be noted. Otherwise leaves no mark.
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

    /// Returns the number of the checkpoint that is complete with its journal, if one is. Only the worker asks this.
    #[inline]
    pub fn number(&self) -> Option<u32> {
        let seen = self.0.load(Relaxed);
        (seen & STATE == CURRENT).then_some(seen >> NUMBER_AT)
    }

    /// Returns whether no command was executed since the device process looked last, except those that a journal has. Only the device process asks this.
    pub fn was_quiet(&self) -> bool {
        !self.0.change(STALE, WATCHED)
    }

    /// Returns the number of the last checkpoint, if that is complete, and has all executed commands together with its journal.
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
