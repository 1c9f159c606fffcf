//! A context's journal, as far as execution knows it: it hears what a successor could not do again, and which submissions are pending.
//!
//! A journal has the bytes of the commands that were executed since the last checkpoint. Whether these bytes are enough is known here: a
//! command that fails may succeed in a successor, and what the GPU has written into queries is gone. Such a thing *breaks* the journal.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A journal that is written beside the execution of commands.
pub trait Journal: Send + Sync {
    /// Notes that a successor cannot do again what is executed, for the reason `why`: until the next checkpoint there is none. It comes from
    /// any thread, and may come often.
    fn breaks(&self, why: &'static str);

    /// Counts a submission that is about to be pending: neither the driver nor a scheduler's gate has it yet.
    fn submits(&self);

    /// Counts `count` submissions no more, as they have completed or never reach the driver.
    fn completed(&self, count: u32);
}

/// The journal of a context, if one is written.
#[derive(Default)]
pub struct Journalled {
    journal: Option<Arc<dyn Journal>>,
    /// The reason for the first break since the last look.
    broken: Mutex<Option<&'static str>>,
    /// The driver has failed to say how far submissions are.
    has_failed: AtomicBool,
}

impl Journalled {
    /// Has all told to a journal.
    pub fn by(journal: Arc<dyn Journal>) -> Self {
        Self { journal: Some(journal), ..Self::default() }
    }

    /// Breaks the journal.
    #[cold]
    pub fn breaks(&self, why: &'static str) {
        self.broken.lock().get_or_insert(why);
        self.journal.iter().for_each(|journal| journal.breaks(why));
    }

    /// Breaks the journal for good: the driver has lost a device, or does not say how far submissions are. So what counts as complete may not be done.
    #[cold]
    pub fn fails(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
        self.breaks("the driver does not say whether submissions are complete");
    }

    /// Returns whether [`Self::fails`] was called: no successor can have what the guest takes for done.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Returns the reason for the first break since this was called last, if there was one.
    pub fn take_break(&self) -> Option<&'static str> {
        self.broken.lock().take()
    }

    /// Counts a submission that is about to be pending.
    #[inline]
    pub fn submits(&self) {
        self.journal.iter().for_each(|journal| journal.submits());
    }

    /// Counts submissions that are not pending any more.
    #[inline]
    pub fn completed(&self, count: usize) {
        self.journal.iter().for_each(|journal| journal.completed(count as u32));
    }
}
