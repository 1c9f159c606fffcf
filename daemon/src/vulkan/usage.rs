//! What recorded and submitted work uses, so that nothing is destroyed under it.
//!
//! Vulkan lets an application destroy an object only when no pending submission uses it, and never submit a recording that names a
//! destroyed one. Drivers believe it. Here each object carries a [`Usage`]: a recording keeps those of the objects that it names,
//! a submission demands that all are alive and leaves its number in them, and a destruction looks at the number.
//!
//! Knows no commands. What shaders reach through descriptors and addresses is not counted: the driver's and the GPU's affair.

use super::submission::Number;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether one object is alive, and its last submission.
///
/// Either side writes its own part before it reads the other's (sequentially consistent), so a destruction and a submission that
/// meet cannot both overlook the other.
#[derive(Debug, Default)]
pub struct Usage {
    destroyed: AtomicBool,
    last: AtomicU64,
}

impl Usage {
    /// The object is named by a submission from now on. Answers whether it is still alive.
    pub fn submit(&self, submission: Number) -> bool {
        self.last.fetch_max(submission, Ordering::SeqCst);
        !self.destroyed.load(Ordering::SeqCst)
    }

    /// The object is gone for the guest.
    pub fn end(&self) {
        self.destroyed.store(true, Ordering::SeqCst);
    }

    /// The last submission that names it.
    pub fn last(&self) -> Number {
        self.last.load(Ordering::SeqCst)
    }
}

/// What a recording names.
#[derive(Debug, Default)]
pub struct Uses(RefCell<SmallVec<[Arc<Usage>; 4]>>);

/// How many of the latest entries are searched before another is added: recordings name the same few again and again.
const RECENT: usize = 8;

impl Uses {
    /// Adds an object.
    #[inline]
    pub fn add(&self, usage: &Arc<Usage>) {
        let mut uses = self.0.borrow_mut();
        if !uses.iter().rev().take(RECENT).any(|known| Arc::ptr_eq(known, usage)) {
            uses.push(Arc::clone(usage));
        }
    }

    /// Adds all that another recording names.
    pub fn add_all(&self, other: &Self) {
        self.0.borrow_mut().extend(other.0.borrow().iter().cloned());
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// Marks everything as submitted. Answers whether all of it is alive.
    pub fn submit(&self, submission: Number) -> bool {
        self.0.borrow().iter().all(|usage| usage.submit(submission))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_of_destroyed_objects_are_told() {
        let (kept, destroyed) = (Arc::new(Usage::default()), Arc::new(Usage::default()));
        let uses = Uses::default();
        uses.add(&kept);
        uses.add(&destroyed);
        uses.add(&kept);
        assert!(uses.submit(3));
        assert_eq!((kept.last(), destroyed.last()), (3, 3));
        destroyed.end();
        assert!(!uses.submit(4));
        uses.clear();
        assert!(uses.submit(5));
        assert_eq!(kept.last(), 4);
    }
}
