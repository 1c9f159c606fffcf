//! A context's journal, as far as execution knows it: it is told which work a successor could not repeat, and how many submissions are pending.
//!
//! A journal has the bytes of the commands that were executed since the last checkpoint. Only execution knows whether these bytes are enough: a
//! command that fails may succeed in a successor, and results that the GPU has written into queries are gone. Such an event *breaks* the journal.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A journal that is written beside the execution of commands.
pub trait Journal: Send + Sync {
    /// Notes that a successor cannot repeat the executed commands, for the reason `why`: until the next checkpoint the context can have no
    /// successor. Any thread may call this, and often.
    fn breaks(&self, why: &'static str);

    /// Counts a submission that is about to be pending: neither the driver nor a scheduler's gate has it yet.
    fn submits(&self);

    /// Stops counting `count` submissions, which have completed or never reach the driver.
    fn completed(&self, count: u32);
}

/// The journal of a context, if one is written.
#[derive(Default)]
pub struct Journalled {
    journal: Option<Arc<dyn Journal>>,
    /// The reason for the first break since the last look.
    broken: Mutex<Option<&'static str>>,
    /// True if the driver has failed to say whether submissions are complete.
    has_failed: AtomicBool,
}

impl Journalled {
    /// Passes all calls on to a journal.
    pub fn by(journal: Arc<dyn Journal>) -> Self {
        Self { journal: Some(journal), ..Self::default() }
    }

    /// Breaks the journal.
    #[cold]
    pub fn breaks(&self, why: &'static str) {
        self.broken.lock().get_or_insert(why);
        self.journal.iter().for_each(|journal| journal.breaks(why));
    }

    /// Breaks the journal for good: the driver has lost a device, or does not report completions. So work that counts as complete may be unfinished.
    #[cold]
    pub fn fails(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
        self.breaks("the driver does not say whether submissions are complete");
    }

    /// Returns whether [`Self::fails`] was called: no successor can have the results that the guest takes for done.
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
