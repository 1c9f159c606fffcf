//! A measure of how often the guest's kernel asks for the end of submissions.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of submissions after which the guest's kernel last asked for the end of all. From Mesa 26.2 on it asks after each submission that has a
/// fence, and the driver is told of no fence.
#[derive(Debug, Default)]
pub struct Asks {
    since: AtomicU32,
    usual: AtomicU32,
}

impl Asks {
    /// Counts a submission. Returns whether the guest's kernel is likely to ask for its end next, so that a marker would follow it anyway.
    pub fn submitted(&self) -> bool {
        let since = self.since.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        since == self.usual.load(Ordering::Relaxed)
    }

    /// Notes that the guest's kernel has asked for the end of all submissions.
    pub fn asked(&self) {
        match self.since.swap(0, Ordering::Relaxed) {
            0 => {}
            since => self.usual.store(since, Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_submission_is_asked_for_that_it_was_last_time() {
        let asks = Asks::default();
        assert!((0..10).all(|_| !asks.submitted()), "no query has come yet");
        asks.asked();
        let expected = |submissions: u32| {
            let expected: Vec<bool> = (0..submissions).map(|_| asks.submitted()).collect();
            (0..2).for_each(|_| asks.asked());
            expected
        };
        assert_eq!(expected(10), [vec![false; 9], vec![true]].concat());
        assert_eq!(expected(1), [false]);
        assert_eq!(expected(1), [true]);
        assert_eq!(expected(2), [true, false], "it can be wrong once");
        assert_eq!(expected(2), [false, true]);
    }
}
