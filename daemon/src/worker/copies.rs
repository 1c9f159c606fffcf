//! Bytes that the executors of a context have copied out of shared memory and not executed yet, counted together.
//!
//! One command can name the same stream many times, and wait for as long as the guest likes while it is executed: counted for each ring
//! alone, copies would grow with the number of rings, out of memory that the guest's quotas know nothing of.

use crate::vulkan::ContextLost;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is copied now.
#[derive(Debug, Default)]
pub struct Copies(Arc<AtomicUsize>);

/// Bytes of one executor, counted until this value is dropped.
#[derive(Debug)]
pub struct Counted {
    bytes: usize,
    of: Arc<AtomicUsize>,
}

impl Copies {
    /// Counts what one executor is going to copy.
    pub fn count(&self) -> Counted {
        Counted { bytes: 0, of: Arc::clone(&self.0) }
    }
}

impl Counted {
    /// Counts so many more.
    ///
    /// # Errors
    ///
    /// All executors together would have copied more than `limit`.
    pub fn add(&mut self, bytes: usize, limit: usize) -> Result<(), ContextLost> {
        let more = |all: usize| all.checked_add(bytes).filter(|all| *all <= limit);
        if self.of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return Err(ContextLost::new(format!("limit reached: command_bytes ({limit})")));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_copy_is_counted_together_until_they_are_through() {
        let copies = Copies::default();
        let (mut one, mut other) = (copies.count(), copies.count());
        one.add(60, 100).unwrap();
        other.add(40, 100).unwrap();
        let refused = other.add(1, 100).unwrap_err().to_string();
        assert!(refused.contains("command_bytes (100)"), "{refused}");
        drop(one);
        other.add(60, 100).unwrap();
        assert!(copies.count().add(usize::MAX, 100).is_err());
        drop(other);
        copies.count().add(100, 100).unwrap();
        copies.count().add(100, 100).unwrap();
    }
}
