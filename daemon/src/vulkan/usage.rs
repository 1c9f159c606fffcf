//! What recorded and submitted work uses, so that nothing is destroyed under it.
//!
//! Vulkan lets an application destroy an object only when no pending submission uses it, and never submit a recording that names a
//! destroyed one. Drivers believe it. Here each object carries a [`Usage`]: a recording keeps those of the objects that it names,
//! a submission demands that all are alive and leaves its number in them, and a destruction looks at the number.
//!
//! Knows no commands. What shaders reach through descriptors and addresses is not counted: the driver's and the GPU's affair.

use super::submission::Submitted;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether one object is alive, its last submission, and who names it.
///
/// Either side writes its own part before it reads the other's (sequentially consistent), so a destruction and a submission that
/// meet cannot both overlook the other.
#[derive(Debug, Default)]
pub struct Usage {
    destroyed: AtomicBool,
    /// The number of the last submission, and the queues of all.
    last: AtomicU64,
    queues: AtomicU64,
    /// The last that it was added to; a hint, as another may be since.
    named_by: AtomicU64,
}

impl Usage {
    /// The object is named by a submission from now on. Answers whether it is still alive.
    pub fn submit(&self, submission: Submitted) -> bool {
        // Whoever sees the number sees its queue.
        self.queues.fetch_or(submission.queues, Ordering::SeqCst);
        self.last.fetch_max(submission.number, Ordering::SeqCst);
        !self.destroyed.load(Ordering::SeqCst)
    }

    /// The object is gone for the guest.
    pub fn end(&self) {
        self.destroyed.store(true, Ordering::SeqCst);
    }

    /// The submissions that name it.
    pub fn submitted(&self) -> Submitted {
        let number = self.last.load(Ordering::SeqCst);
        Submitted { number, queues: self.queues.load(Ordering::SeqCst) }
    }
}

/// What a recording names.
#[derive(Debug)]
pub struct Uses {
    /// No other has it, nor had this one with other contents.
    mark: Cell<u64>,
    all: RefCell<SmallVec<[Arc<Usage>; 4]>>,
}

/// How many of the latest entries are searched where several recordings name the same objects at once, and so mark them by turns.
const RECENT: usize = 8;

impl Default for Uses {
    fn default() -> Self {
        Self { mark: Cell::new(new_mark()), all: RefCell::default() }
    }
}

fn new_mark() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Uses {
    /// Adds an object.
    #[inline]
    pub fn add(&self, usage: &Arc<Usage>) {
        // What carries the mark was added: nobody else knows it.
        if usage.named_by.load(Ordering::Relaxed) != self.mark.get() {
            self.add_unmarked(usage);
        }
    }

    #[inline(never)]
    fn add_unmarked(&self, usage: &Arc<Usage>) {
        let mut uses = self.all.borrow_mut();
        if !uses.iter().rev().take(RECENT).any(|known| Arc::ptr_eq(known, usage)) {
            uses.push(Arc::clone(usage));
            usage.named_by.store(self.mark.get(), Ordering::Relaxed);
        }
    }

    /// Adds all that another recording names.
    pub fn add_all(&self, other: &Self) {
        self.all.borrow_mut().extend(other.all.borrow().iter().cloned());
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.all.borrow_mut().clear();
        self.mark.set(new_mark());
    }

    /// Marks everything as submitted. Answers whether all of it is alive.
    pub fn submit(&self, submission: Submitted) -> bool {
        self.all.borrow().iter().all(|usage| usage.submit(submission))
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
        let to = |number, queues| Submitted { number, queues };
        assert!(uses.submit(to(3, 0b10)));
        assert_eq!((kept.submitted(), destroyed.submitted()), (to(3, 0b10), to(3, 0b10)));
        destroyed.end();
        assert!(!uses.submit(to(4, 0b10)));
        uses.clear();
        assert!(uses.submit(to(5, 0b10)));
        assert_eq!(kept.submitted(), to(4, 0b10));
        uses.add(&kept);
        assert!(uses.submit(to(6, 0b100)));
        assert_eq!(kept.submitted(), to(6, 0b110));
    }

    #[test]
    fn objects_that_come_again_after_many_others_are_named_once() {
        let all: Vec<_> = (0..100).map(|_| Arc::new(Usage::default())).collect();
        let (one, other) = (Uses::default(), Uses::default());
        for _ in 0..10 {
            all.iter().for_each(|usage| one.add(usage));
        }
        assert_eq!(one.all.borrow().len(), all.len());
        // By turns with another, which takes the mark over.
        for _ in 0..10 {
            all.iter().take(2).for_each(|usage| other.add(usage));
            all.iter().take(2).for_each(|usage| one.add(usage));
        }
        assert_eq!((one.all.borrow().len(), other.all.borrow().len()), (all.len() + 2, 2));
    }
}
