//! A queue as its device and the context see it: the work that it has completed, the time for which work runs, and fences of the guest that wait.

use super::device::Device;
use super::submitted::Number;
use crate::context::cancel::Cancel;
use crate::context::error::Fault;
use crate::gates::gate::Gate;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A function that is called once a queue has completed all earlier submissions.
pub(crate) type Done = Box<dyn FnOnce() + Send>;

/// A queue, which has a fence timeline of the context.
pub trait Timeline: Send + Sync {
    /// Returns whether no submission up to a number is pending.
    fn has_completed(&self, device: &Device, number: Number) -> bool;
    /// Returns whether a submission up to a number waits for a missing signal, and is pending for sure.
    fn is_blocked(&self, device: &Device, number: Number) -> bool;
    /// Notes which submissions are complete.
    fn refresh(&self);
    /// Returns for how long the queue's first submission has run; with `restart` this time counts from 0 again.
    fn look(&self, now: Instant, restart: bool) -> Look;
    /// Returns whether a submission is pending, and whether it can go on.
    fn standing(&self) -> Standing;
    /// Returns whether the queue's submissions pass this gate.
    fn passes_through(&self, gate: &Arc<Gate>) -> bool;
    /// Calls `done` when everything submitted so far has completed, in order; at once if the device is gone or lost.
    fn fence(&self, done: Done);
    /// Waits until everything submitted so far has completed.
    ///
    /// # Errors
    ///
    /// The wait was cancelled or interrupted.
    fn wait_idle(&self, cancel: &Cancel) -> Result<(), Fault>;
    /// Answers the pending fences, in order, and ends the queue's threads.
    fn close(&self);
    /// Forgets all submissions; the queue is idle, and its device is about to be destroyed.
    fn forget_submissions(&self, device: &Device);
}

/// The state of a queue's submissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// All submissions have completed.
    Idle,
    /// The first pending submission runs, can run, or waits for a scheduler.
    Going,
    /// The first pending submission waits for a signal that is not there yet.
    Waits,
}

/// The state of pending submissions at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// True if a submission is not complete.
    pub pending: bool,
    /// The time for which the longest submission has run, if a submission can run.
    pub running: Option<Duration>,
    /// The time that ended submissions took, if any has ended.
    pub usual: Option<Duration>,
    /// The time since which a submission has ended, or a little before, if any has.
    pub served: Option<Instant>,
    /// The longest that the driver may compile shaders in one call, if a call has reached it.
    pub compiled: Option<Duration>,
}

impl Look {
    /// Returns the state of two queues together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            pending: self.pending || other.pending,
            running: self.running.max(other.running),
            usual: self.usual.max(other.usual),
            served: self.served.max(other.served),
            compiled: self.compiled.max(other.compiled),
        }
    }
}

/// The queues of a context by `ring_idx`, 1 to 63. Devices own them.
pub struct Timelines(Mutex<[Option<Weak<dyn Timeline>>; 64]>);

impl Default for Timelines {
    fn default() -> Self {
        Self(Mutex::new([const { None }; 64]))
    }
}

impl Timelines {
    /// Returns the queue bound to an index, if there is one.
    pub fn get(&self, ring_idx: u8) -> Option<Arc<dyn Timeline>> {
        self.0.lock().get(usize::from(ring_idx))?.as_ref()?.upgrade()
    }

    /// Returns all queues.
    pub fn all(&self) -> Vec<Arc<dyn Timeline>> {
        self.0.lock().iter().filter_map(|queue| queue.as_ref()?.upgrade()).collect()
    }

    /// Binds a queue to an index.
    ///
    /// # Errors
    ///
    /// Another queue is bound to this index.
    pub fn bind(&self, ring_idx: u8, queue: &Arc<dyn Timeline>) -> Result<(), Fault> {
        let mut timelines = self.0.lock();
        let slot = timelines.get_mut(usize::from(ring_idx));
        let slot = slot.ok_or_else(|| Fault::rule("a queue with an unknown ring_idx"))?;
        if slot.as_ref().is_some_and(|bound| bound.strong_count() > 0) {
            return Err(Fault::rule("a queue with the ring_idx of another queue"));
        }
        *slot = Some(Arc::downgrade(queue));
        Ok(())
    }

    /// Frees an index.
    pub fn unbind(&self, ring_idx: u8) {
        if let Some(slot) = self.0.lock().get_mut(usize::from(ring_idx)) {
            *slot = None;
        }
    }
}
