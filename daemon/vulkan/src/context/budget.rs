//! Bytes of one kind that a context's commands hold, counted for all its rings and queues together.
//!
//! A command can name the same stream many times, decode to more bytes than its own, and wait for as long as the guest likes. If each ring or
//! submission were counted alone, these bytes would grow with their number, out of memory that the guest's quotas do not cover.

use super::cause::Limit;
use super::error::ContextLost;
use protocol::cursor::Room;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes that all holders may hold together, and those that they hold now.
#[derive(Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    reached: Limit,
    limit: usize,
    used: AtomicUsize,
}

/// Bytes of one holder, counted until this value is dropped.
#[derive(Debug)]
pub struct Counted {
    bytes: usize,
    of: Arc<Inner>,
}

impl Budget {
    /// A budget of `bytes`, none of them held; `limit` makes the error for a holder that would exceed the budget.
    pub fn new(limit: impl Fn(usize) -> Limit, bytes: usize) -> Self {
        Self(Arc::new(Inner { reached: limit(bytes), limit: bytes, used: AtomicUsize::new(0) }))
    }

    /// Returns the count of one holder's bytes, which begins at 0.
    pub fn count(&self) -> Counted {
        Counted { bytes: 0, of: Arc::clone(&self.0) }
    }
}

impl Counted {
    /// Counts `bytes` more bytes for this holder.
    ///
    /// # Errors
    ///
    /// All holders together would have more than the limit.
    pub fn add(&mut self, bytes: usize) -> Result<(), ContextLost> {
        let reached = self.of.reached;
        self.more(bytes).then_some(()).ok_or_else(|| ContextLost::from(reached))
    }

    /// Sets the count of this holder to 0.
    pub fn clear(&mut self) {
        self.of.used.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Room for Counted {
    fn more(&mut self, bytes: usize) -> bool {
        let Inner { limit, used, .. } = &*self.of;
        let more = |all: usize| all.checked_add(bytes).filter(|all| all <= limit);
        let counted = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        self.bytes += if counted { bytes } else { 0 };
        counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::cursor::Arena;

    #[test]
    fn what_several_hold_is_counted_together_until_they_are_through() {
        let budget = Budget::new(Limit::CommandBytes, 100);
        let (mut one, mut other) = (budget.count(), budget.count());
        one.add(60).unwrap();
        other.add(40).unwrap();
        let refused = other.add(1).unwrap_err().to_string();
        assert!(refused.contains("command_bytes (100B)"), "{refused}");
        drop(one);
        other.add(60).unwrap();
        assert!(budget.count().add(usize::MAX).is_err());
        drop(other);
        budget.count().add(100).unwrap();
        budget.count().add(100).unwrap();
    }

    #[test]
    fn arenas_share_what_is_beyond_their_own() {
        let budget = Budget::new(Limit::ArenaBytes, 1 << 20);
        let arena = || Arena::within(1 << 10, budget.count());
        let fill = |arena: &Arena, bytes: usize| arena.slice_fill(bytes, 1u8).is_ok();
        let (one, other) = (arena(), arena());
        assert!(fill(&one, 700 << 10), "more than its own");
        assert!(!fill(&other, 700 << 10), "both have more than there is");
        assert!(fill(&other, 200 << 10), "what is left");
        let small: Vec<Arena> = (0..1000).map(|_| arena()).collect();
        assert!(small.iter().all(|arena| fill(arena, 64)), "each has room of its own");
        drop(one);
        assert!(fill(&other, 700 << 10), "what the other has given back");
        drop((small, other));
        assert_eq!(budget.0.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn many_values_fill_what_there_is_and_not_more() {
        let budget = Budget::new(Limit::ArenaBytes, 1 << 20);
        let arena = Arena::within(0, budget.count());
        let filled = (0u64..).take_while(|value| arena.value(*value).is_ok()).count() * size_of::<u64>();
        let held = arena.allocated_bytes();
        assert!(held <= 1 << 20 && filled > 1 << 18, "{filled} of {held} bytes");
    }
}
