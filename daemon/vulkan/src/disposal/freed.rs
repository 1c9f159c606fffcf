//! A count of the times that memory was freed. A request that has found no memory, and has waited for a thread that frees some, learns from the count
//! whether there may be memory now, whichever thread has freed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The count of a context, shared by all code that frees the context's memory.
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
