//! The mark of a context's checkpoint: whether what a worker has written down of its context is still all that the guest has made of it.
//!
//! The worker takes the mark away before it executes anything, so a checkpoint whose mark is there is complete, however the worker has ended.
//! A worker that was taken over can leave the mark where it does not belong: then its own context is built up as it was before.

use super::Word;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Something was executed that no checkpoint has.
const STALE: u32 = 0;
/// A checkpoint is asked for, and nothing was executed since.
const WANTED: u32 = 1;
/// The checkpoint is complete.
const CURRENT: u32 = 2;
/// No checkpoint has everything, and nothing was executed since the device process looked last.
const WATCHED: u32 = 3;

/// The mark, as either side sees it. It begins without a checkpoint.
#[derive(Debug)]
pub struct CheckpointMark(Word);

impl CheckpointMark {
    pub(super) fn new(word: Word) -> Self {
        Self(word)
    }

    /// The worker has heard that it is to write a checkpoint.
    pub fn begins(&self) {
        self.0.store(WANTED, SeqCst);
    }

    /// The worker has written the checkpoint. Returns whether it is complete, as nothing was executed since [`Self::begins`].
    pub fn ends(&self) -> bool {
        self.0.change(WANTED, CURRENT)
    }

    /// The worker is about to execute something.
    #[inline]
    pub fn changes(&self) {
        if self.0.load(Relaxed) != STALE {
            self.0.store(STALE, SeqCst);
        }
    }

    /// The device process looks. Returns whether nothing was executed since it looked last.
    pub fn was_quiet(&self) -> bool {
        !self.0.change(STALE, WATCHED)
    }

    /// Returns whether the last checkpoint is complete, and has all that was executed.
    pub fn is_current(&self) -> bool {
        self.0.load(SeqCst) == CURRENT
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use crate::StatusPage;

    #[test]
    fn a_checkpoint_is_current_until_something_is_executed_and_never_if_that_was_before_its_end() {
        let (ours, file) = StatusPage::create().unwrap();
        let theirs = StatusPage::open(&file).unwrap();
        let (ours, theirs) = (ours.checkpoint(), theirs.checkpoint());
        assert!(!ours.is_current() && !theirs.ends(), "none was begun");
        theirs.begins();
        assert!(!ours.is_current());
        assert!(theirs.ends() && ours.is_current() && !theirs.ends());
        theirs.changes();
        assert!(!ours.is_current());
        theirs.begins();
        theirs.changes();
        assert!(!theirs.ends() && !ours.is_current());
    }

    #[test]
    fn nothing_is_executed_between_two_looks_or_the_second_one_sees_it() {
        let (ours, file) = StatusPage::create().unwrap();
        let theirs = StatusPage::open(&file).unwrap();
        let (ours, theirs) = (ours.checkpoint(), theirs.checkpoint());
        assert!(!ours.was_quiet() && ours.was_quiet() && ours.was_quiet());
        theirs.changes();
        assert!(!ours.was_quiet() && ours.was_quiet() && !ours.is_current());
        theirs.begins();
        assert!(theirs.ends() && ours.was_quiet() && ours.is_current(), "a look takes nothing away");
    }
}
