//! How long the submissions of a queue run: what is submitted and not complete, in order, and since when the first of it can run.
//!
//! A submission may wait for as long as a program likes before it runs: for a semaphore that a host thread or another queue signals
//! later (Vulkan 7.4.1, wait-before-signal). So its time begins when what it waits for is there and what was submitted to its queue
//! before is complete. A wait for an event inside of a command buffer keeps the queue, and counts.
//!
//! Knows no driver: what a fence or semaphore says is asked through [`Driver`].

use protocol::venus::generated::Semaphore;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time that counts between two looks. Who looks later than that was stopped, or had no processor: then nobody knows what
/// ran meanwhile.
const GAP_MAX: Duration = Duration::from_millis(200);

/// The number of a call to `vkQueueSubmit`, in the order of a device; 0 is none.
pub type Number = u64;

/// One call to the driver, of batches that begin together.
#[derive(Debug)]
pub struct Submission {
    /// In the order of the device; submissions of one call share it.
    number: Number,
    /// Signalled with its last batch: a fence of ours.
    pub marker: u64,
    /// What it waits for before it runs.
    waits: Vec<Wait>,
    /// The driver has taken it. Before, nobody else may name its marker (Vulkan 3.6, of vkQueueSubmit's fence).
    taken: AtomicBool,
    complete: Completion,
}

/// Whether a submission is complete. Outlives it, as semaphores remember who signals them.
#[derive(Clone, Debug, Default)]
pub struct Completion(Arc<AtomicBool>);

/// What a submission waits for.
#[derive(Debug)]
pub enum Wait {
    /// A value of a timeline semaphore.
    Timeline {
        /// As the guest calls it.
        semaphore: Semaphore,
        /// The host's handle, as the guest may use the id again.
        raw: u64,
        /// The value.
        value: u64,
    },
    /// The submission that signals a binary semaphore.
    Signalled(Completion),
}

/// How a semaphore is signalled.
#[derive(Debug)]
pub enum Signal {
    /// To values, by queues and by the host.
    Timeline,
    /// By this submission, the last that was to.
    Binary(Option<Completion>),
}

/// What the driver says.
pub trait Driver {
    /// Whether a fence is signalled, or never will be.
    fn is_signalled(&self, marker: u64) -> bool;
    /// Whether a timeline semaphore has reached a value, or is gone.
    fn has_reached(&self, semaphore: Semaphore, raw: u64, value: u64) -> bool;
}

/// What is submitted to a queue and not complete.
#[derive(Debug)]
pub struct Submissions {
    pending: VecDeque<Arc<Submission>>,
    /// For how long the first has run, up to `counted`.
    ran: Duration,
    counted: Instant,
}

/// What a look found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Something is submitted and not complete.
    pub pending: bool,
    /// For how long the longest submission has run, if one can run.
    pub running: Option<Duration>,
}

impl Look {
    /// What was found on two queues.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { pending: self.pending || other.pending, running: self.running.max(other.running) }
    }
}

impl Submission {
    /// One that is about to be submitted.
    pub fn new(number: Number, marker: u64, waits: Vec<Wait>) -> Arc<Self> {
        let (taken, complete) = (AtomicBool::new(false), Completion::default());
        Arc::new(Self { number, marker, waits, taken, complete })
    }

    /// The driver has taken it, and will signal its marker.
    pub fn taken(&self) {
        self.taken.store(true, Ordering::Release);
    }

    /// To be asked later whether it is complete.
    pub fn completion(&self) -> Completion {
        self.complete.clone()
    }

    fn can_run(&self, driver: &impl Driver) -> bool {
        self.waits.iter().all(|wait| match wait {
            Wait::Timeline { semaphore, raw, value } => driver.has_reached(*semaphore, *raw, *value),
            Wait::Signalled(by) => by.0.load(Ordering::Acquire),
        })
    }
}

impl Submissions {
    /// Nothing is submitted.
    pub fn new(now: Instant) -> Self {
        Self { pending: VecDeque::new(), ran: Duration::ZERO, counted: now }
    }

    /// Something is about to be submitted.
    pub fn begin(&mut self, submission: Arc<Submission>, now: Instant) {
        if self.pending.is_empty() {
            (self.ran, self.counted) = (Duration::ZERO, now);
        }
        self.pending.push_back(submission);
    }

    /// The driver has refused it.
    pub fn withdraw(&mut self, submission: &Arc<Submission>) {
        submission.complete.0.store(true, Ordering::Release);
        self.pending.retain(|other| !Arc::ptr_eq(other, submission));
    }

    /// The number of the first; to be called after [`Self::collect`].
    pub fn first(&self) -> Option<Number> {
        self.pending.front().map(|first| first.number)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Takes out what is complete; hands out the markers, which are free now.
    pub fn collect(&mut self, driver: &impl Driver, now: Instant) -> Vec<u64> {
        let mut free = Vec::new();
        let is_complete = |first: &&Arc<Submission>| {
            first.taken.load(Ordering::Acquire) && driver.is_signalled(first.marker)
        };
        while let Some(first) = self.pending.front().filter(is_complete) {
            first.complete.0.store(true, Ordering::Release);
            free.push(first.marker);
            self.pending.pop_front();
            (self.ran, self.counted) = (Duration::ZERO, now);
        }
        free
    }

    /// Looks how long the first has run. To be called after [`Self::collect`] for all queues, as they wait for each other.
    pub fn look(&mut self, driver: &impl Driver, now: Instant) -> Look {
        let Some(first) = self.pending.front() else { return Look::default() };
        let since = now.saturating_duration_since(std::mem::replace(&mut self.counted, now));
        if !first.can_run(driver) {
            return Look { pending: true, running: None };
        }
        self.ran += since.min(GAP_MAX);
        Look { pending: true, running: Some(self.ran) }
    }

    /// Counts from 0 again.
    pub fn restart(&mut self) {
        self.ran = Duration::ZERO;
    }

    /// Forgets everything, on a queue that is idle; hands out the markers.
    pub fn clear(&mut self) -> Vec<u64> {
        self.pending.drain(..).map(|submission| submission.marker).collect()
    }
}

#[cfg(test)]
#[path = "submission_tests.rs"]
mod tests;
