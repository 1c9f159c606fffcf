//! A count of the times that memory was freed. A request that has found none, and has waited for what is being freed, learns by it whether there may be some
//! now, whichever thread has freed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The count of a context, which all have that free its memory.
#[derive(Clone, Debug, Default)]
pub struct Freed(Arc<AtomicU64>);

impl Freed {
    /// Counts memory that has been freed just now.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Returns the count so far.
    pub fn so_far(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
