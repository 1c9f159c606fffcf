//! Requests that find no memory have what is kept for later freed, and are tried once more. Several may find none at the same time: only one of them
//! frees something then, and each hears of it.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory that requests have had freed.
#[derive(Debug, Default)]
pub struct Scarcity {
    /// The times at which something was freed. Changed by the holder of `frees` only.
    freed: AtomicU64,
    frees: Mutex<()>,
}

/// The state when a request began.
#[derive(Clone, Copy, Debug)]
pub struct Before(u64);

impl Scarcity {
    /// To be called before memory is asked for.
    pub fn before(&self) -> Before {
        Before(self.freed.load(Ordering::Acquire))
    }

    /// Has memory freed by `free`, which returns whether there was any. Returns whether that was so, or another request has had memory freed since
    /// `before`.
    pub fn free(&self, before: Before, free: impl FnOnce() -> bool) -> bool {
        let _frees = self.frees.lock();
        if free() {
            self.freed.fetch_add(1, Ordering::Release);
        }
        self.freed.load(Ordering::Acquire) != before.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_requests_that_find_no_memory_at_the_same_time_both_hear_that_there_is_some() {
        let scarcity = Scarcity::default();
        let (one, other) = (scarcity.before(), scarcity.before());
        assert!(scarcity.free(one, || true));
        assert!(scarcity.free(other, || false), "the other has freed it");
        assert!(!scarcity.free(scarcity.before(), || false), "it was asked for behind that");
    }
}
