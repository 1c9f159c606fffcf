//! The submissions of a queue and how long they run: what is submitted and not complete, in order, and since when the first of it can run.
//!
//! A submission may wait for as long as a program likes before it runs: for a semaphore that a host thread or another queue signals
//! later (Vulkan 7.4.1, wait-before-signal). So its time begins when what it waits for is there and what was submitted to its queue
//! before is complete. A wait for an event inside of a command buffer keeps the queue, and counts.
//!
//! While a scheduler holds a submission back, the driver has not *taken* it: nothing counts, and nothing of it is complete.
//!
//! Some have no marker of their own ([`super::deferred_markers`]). They are known to be complete when one behind them is, and until then
//! share the time in which the first of them can run.
//!
//! This file knows no driver: what a fence or semaphore says is asked through [`Driver`].

use crate::kinds::fence::Fence;
use crate::kinds::semaphore::{COMPLETE, Progress, Signal, TAKEN};
use crate::logical::submitted::Number;
use crate::logical::timeline::Look;
use parking_lot::Mutex;
use protocol::venus::generated::Semaphore;
use shm::page_clock;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The longest time that counts between two looks. A thread that looks later than that was stopped, or had no processor: then it is not known
/// what ran meanwhile.
const GAP_MAX: Duration = Duration::from_millis(200);

/// The time from which on a submission is long: it is not to be one of several that nothing tells apart.
const LONG: Duration = Duration::from_millis(10);

/// One call to the driver, of batches that begin together and end together as far as the guest is told.
#[derive(Debug)]
pub(crate) struct Submission {
    /// The submission's number in its queue.
    pub number: Number,
    /// The marker, signalled with its last batch, or behind it: a fence of ours, or the guest's; [`NONE`] or [`COMING`].
    marker: AtomicU64,
    /// The guest's fence, if that is the marker: it is not reset or destroyed before the submission is known to be complete.
    pub lent: Option<Arc<Fence>>,
    /// The semaphores and submissions that it waits for before it runs.
    waits: Vec<Wait>,
    progress: Progress,
    /// True while it waits at the gate.
    held: AtomicBool,
    /// True if the scheduler's watcher waits for it.
    watched: AtomicBool,
    /// The number of threads that wait for its marker: the last of them frees it.
    waiters: AtomicU32,
    /// True if the submission before it has no marker, and has to have one before this reaches the driver: it is not known how long this
    /// takes.
    hides: AtomicBool,
    /// The record of when and how it was dispatched, if there is a scheduler.
    dispatched: OnceLock<Dispatched>,
    /// The times for the trace that is taken of it; zeros if none is.
    traced: Traced,
}

/// Times for a trace, in nanoseconds of the monotonic clock; 0 is none.
#[derive(Debug, Default)]
struct Traced {
    submitted: AtomicU64,
    ready: AtomicU64,
}

/// The time and the way in which a scheduled submission was dispatched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispatched {
    /// The time, in nanoseconds of the monotonic clock.
    pub at: u64,
    /// The number of its pair of time stamps, if it has one.
    pub stamp: Option<u32>,
    /// True if the gate has counted it.
    pub counts: bool,
}

/// The marker of a submission that has none.
const NONE: u64 = 0;

/// The marker of a submission that is being marked: no other thread may name its marker yet.
const COMING: u64 = u64::MAX;

/// Something that a submission waits for.
#[derive(Debug)]
pub enum Wait {
    /// A value of a timeline semaphore.
    Timeline {
        /// The semaphore, as the guest calls it.
        semaphore: Semaphore,
        /// The host's handle, as the guest may use the id again.
        raw: u64,
        /// The value.
        value: u64,
        /// The state of the semaphore, which says how it is signalled.
        signal: Arc<Mutex<Signal>>,
    },
    /// The submission that signals a binary semaphore.
    Signalled(Progress),
}

/// The driver, as far as it is asked here.
pub trait Driver {
    /// Returns whether a fence is signalled, or never will be.
    fn is_signalled(&self, marker: u64) -> bool;
    /// Returns whether a timeline semaphore has reached a value, or is gone.
    fn has_reached(&self, semaphore: Semaphore, raw: u64, value: u64) -> bool;
}

/// The submission that is watched of those that the driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// The first that has a marker: the end of each is to be known at once.
    First,
    /// The first that has a marker behind the first half.
    Half,
    /// The last, so that those before it need not be looked at one by one.
    Last,
}

/// Submissions that are dealt with together, usually one.
pub(crate) type Few = SmallVec<[Arc<Submission>; 2]>;

/// The submissions to a queue that are not complete.
#[derive(Debug)]
pub(crate) struct Submissions {
    pending: VecDeque<Arc<Submission>>,
    /// The number of the last that was submitted.
    last: Number,
    /// The time for which the first has run, up to `counted`.
    ran: Duration,
    counted: Instant,
    /// True if the end of the last has to be known.
    wanted: bool,
    /// True if the first was found to run for [`LONG`] and more at the last look.
    is_long: bool,
    /// The results of the last look.
    learned: Learned,
}

/// The time that submissions take, as seen by a thread that looks now and then.
#[derive(Debug)]
struct Learned {
    at: Instant,
    /// The number of submissions that had ended.
    ended: Number,
    /// The time for which the first had run.
    ran: Duration,
    /// The time that those that have ended took, on average of late and at the most.
    usual: Option<Duration>,
    /// The last look before one was found to have ended.
    served: Option<Instant>,
}

impl Submission {
    /// Creates a submission that is about to be submitted, with a marker or without.
    pub(crate) fn new(
        number: Number,
        marker: Option<u64>,
        lent: Option<Arc<Fence>>,
        waits: Vec<Wait>,
    ) -> Arc<Self> {
        let marker = AtomicU64::new(marker.unwrap_or(NONE));
        let (progress, held, watched, waiters, hides, dispatched, traced) = Default::default();
        Arc::new(Self {
            number,
            marker,
            lent,
            waits,
            progress,
            held,
            watched,
            waiters,
            hides,
            dispatched,
            traced,
        })
    }

    /// Returns the submission's marker, if it has one that the driver has with it or will have.
    pub(crate) fn marker(&self) -> Option<u64> {
        Some(self.marker.load(Ordering::Acquire)).filter(|marker| ![NONE, COMING].contains(marker))
    }

    fn has_marker(&self) -> bool {
        self.marker.load(Ordering::Acquire) != NONE
    }

    /// Returns whether the caller has to mark the submission, and then to call [`Self::marked`]: it has no marker and is pending. To be
    /// called with the queue's submissions locked: it stays pending from then on.
    pub(crate) fn begin_marking(&self) -> bool {
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
        !self.progress.is_complete() && self.marker.compare_exchange(NONE, COMING, order, otherwise).is_ok()
    }

    /// Notes that the driver has a marker behind the submission, or could not take any.
    pub(crate) fn marked(&self, marker: Option<u64>) {
        self.marker.store(marker.unwrap_or(NONE), Ordering::Release);
    }

    /// Notes that the driver has taken the submission, and will signal its marker.
    pub(crate) fn taken(&self) {
        self.progress.reach(TAKEN);
    }

    /// Returns the submission's progress, to be asked later.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Notes that the submission waits at the gate until it is dispatched.
    pub(crate) fn hold(&self) {
        self.held.store(true, Ordering::Release);
        self.traced.ready.store(0, Ordering::Relaxed);
    }

    /// Notes that the submission is one of a trace, which begins now.
    pub(crate) fn trace(&self) {
        let now = page_clock();
        self.traced.submitted.store(now, Ordering::Relaxed);
        self.traced.ready.store(now, Ordering::Relaxed);
    }

    /// Notes, for a trace, that nothing is missing any more that the submission waits for.
    pub(crate) fn note_ready(&self) {
        let is_new = self.traced.ready.load(Ordering::Relaxed) == 0;
        if is_new && self.traced.submitted.load(Ordering::Relaxed) != 0 {
            self.traced.ready.store(page_clock(), Ordering::Relaxed);
        }
    }

    /// Returns when the submission was submitted and when it was found ready, if a trace is taken of it and it was dispatched at that time.
    pub(crate) fn traced(&self, dispatched: u64) -> Option<(u64, u64)> {
        let submitted = Some(self.traced.submitted.load(Ordering::Relaxed)).filter(|at| *at != 0)?;
        // No thread has looked at one that stood far behind in the held queue.
        let ready = Some(self.traced.ready.load(Ordering::Relaxed)).filter(|at| *at != 0);
        Some((submitted, ready.unwrap_or(dispatched)))
    }

    /// Notes that the submission before this one has to be marked before the driver gets this.
    pub(crate) fn hide(&self) {
        self.hides.store(true, Ordering::Release);
    }

    /// Returns whether [`Self::hide`] was called.
    pub(crate) fn hides(&self) -> bool {
        self.hides.load(Ordering::Acquire)
    }

    /// Notes that the submission is about to be dispatched as the scheduler allows.
    pub(crate) fn set_dispatched(&self, dispatched: Dispatched) {
        self.held.store(false, Ordering::Release);
        // Nothing is dispatched twice.
        let _ = self.dispatched.set(dispatched);
    }

    /// Returns when and how the submission was dispatched, if a scheduler had to allow it.
    pub(crate) fn dispatched(&self) -> Option<Dispatched> {
        self.dispatched.get().copied()
    }

    /// Returns whether a thread waits for the submission's end, and frees its marker if that is ours.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiters.load(Ordering::Acquire) > 0
    }

    /// Notes that the caller is going to wait for the submission's end. To be called while it is pending, with its queue's submissions
    /// locked.
    fn await_end(&self) {
        self.waiters.fetch_add(1, Ordering::AcqRel);
        if let Some(fence) = &self.lent {
            fence.watch();
        }
    }

    /// Notes that a thread that waited for the submission knows that it has ended. Returns whether that thread has to free the marker. To
    /// be called with the queue's submissions locked, so that it is freed once.
    pub(crate) fn has_ended(&self) -> bool {
        let is_last = self.waiters.fetch_sub(1, Ordering::AcqRel) == 1;
        match &self.lent {
            Some(fence) => {
                fence.watched();
                false
            }
            None => is_last && self.progress.is_complete(),
        }
    }

    fn is_blocked(&self, driver: &impl Driver) -> bool {
        let is_missing = |wait: &Wait| match wait {
            Wait::Timeline { semaphore, raw, value, .. } => !driver.has_reached(*semaphore, *raw, *value),
            Wait::Signalled(by) => !by.is_taken(),
        };
        self.held.load(Ordering::Acquire) || self.waits.iter().any(is_missing)
    }

    /// Returns whether nothing that the submission waits for is missing.
    pub(crate) fn can_run(&self, driver: &impl Driver) -> bool {
        self.waits.iter().all(|wait| match wait {
            Wait::Timeline { semaphore, raw, value, .. } => driver.has_reached(*semaphore, *raw, *value),
            Wait::Signalled(by) => by.is_complete(),
        })
    }

    /// Returns whether what the submission waits for is there, or will be without further commands once the driver has it.
    pub(crate) fn is_ready(&self, driver: &impl Driver) -> bool {
        self.waits.iter().all(|wait| match wait {
            Wait::Timeline { semaphore, raw, value, signal } => {
                signal.lock().promises(*value) || driver.has_reached(*semaphore, *raw, *value)
            }
            Wait::Signalled(by) => by.is_taken(),
        })
    }
}

impl Submissions {
    /// Creates the submissions of a queue, of which there are none yet.
    pub(crate) fn new(now: Instant) -> Self {
        let (pending, last, ran, wanted, is_long) = Default::default();
        let learned = Learned { at: now, ended: 0, ran: Duration::ZERO, usual: None, served: None };
        Self { pending, last, ran, counted: now, wanted, is_long, learned }
    }

    /// Adds a submission that is about to be submitted.
    pub(crate) fn begin(&mut self, submission: Arc<Submission>, now: Instant) {
        if self.pending.is_empty() {
            (self.ran, self.counted) = (Duration::ZERO, now);
        }
        self.last = submission.number;
        self.pending.push_back(submission);
        self.wanted = false;
    }

    /// Returns the number that the next submission has.
    pub(crate) fn next(&self) -> Number {
        self.last + 1
    }

    /// Returns whether the last submission that is pending has no marker.
    pub(crate) fn ends_unmarked(&self) -> bool {
        self.pending.back().is_some_and(|last| !last.has_marker())
    }

    /// Returns whether a submission up to `number` cannot have begun: it waits at the gate, or for what is not signalled yet.
    pub(crate) fn is_blocked(&self, driver: &impl Driver, number: Number) -> bool {
        let mut up_to = self.pending.iter().take_while(|submission| submission.number <= number);
        up_to.any(|submission| submission.is_blocked(driver))
    }

    /// Removes a submission that the driver has refused, or does not get.
    pub(crate) fn withdraw(&mut self, submission: &Arc<Submission>) {
        submission.progress.reach(COMPLETE);
        self.pending.retain(|other| !Arc::ptr_eq(other, submission));
    }

    /// Returns the number of the last that was submitted, or 0.
    pub(crate) fn last(&self) -> Number {
        self.last
    }

    /// Returns the number of the first; to be called after [`Self::collect`].
    pub(crate) fn first(&self) -> Option<Number> {
        self.pending.front().map(|first| first.number)
    }

    /// Returns how many submissions there are.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Takes out what is complete, to be settled: the markers that no thread watches are free.
    pub(crate) fn collect(&mut self, driver: &impl Driver, now: impl Fn() -> Instant) -> Few {
        let mut complete = Few::new();
        let is_complete = |marked: &Arc<Submission>| {
            marked.progress.is_taken() && marked.marker().is_some_and(|marker| driver.is_signalled(marker))
        };
        loop {
            let behind = self.run();
            if !self.pending.get(behind).is_some_and(is_complete) {
                return complete;
            }
            complete.extend(self.pending.drain(..=behind).inspect(|one| one.progress.reach(COMPLETE)));
            (self.ran, self.counted) = (Duration::ZERO, now());
        }
    }

    /// Returns how many submissions stand before the first that has a marker.
    fn run(&self) -> usize {
        self.pending.iter().take_while(|submission| !submission.has_marker()).count()
    }

    /// Returns whether the next may go without a marker: fewer than `most` before it do, the end of the last need not be known, and
    /// none was found to run long of late.
    pub(crate) fn spares_marker(&self, most: usize) -> bool {
        !self.wanted
            && !self.is_long
            && self.pending.iter().rev().take_while(|last| !last.has_marker()).count() < most
    }

    /// Returns the last that the driver has, if no marker tells the end of all up to `number` that it has, and there are any.
    pub(crate) fn unmarked(&mut self, number: Number) -> Option<Arc<Submission>> {
        let taken = self.taken();
        let count = self.pending.partition_point(|submission| submission.number <= number).min(taken);
        let last = count.checked_sub(1)?;
        if self.pending.range(last..taken).any(|submission| submission.has_marker()) {
            return None;
        }
        self.wanted = true;
        self.pending.get(taken - 1).cloned()
    }

    /// Returns a submission that the driver has, if no thread watches any: the caller does from now on.
    pub(crate) fn watch(&mut self, which: Watched) -> Option<Arc<Submission>> {
        let taken = self.taken();
        if self.pending.range(..taken).any(|submission| submission.watched.load(Ordering::Acquire)) {
            return None;
        }
        let last = taken.checked_sub(1)?;
        let from = match which {
            Watched::First => 0,
            Watched::Half => last / 2,
            Watched::Last => last,
        };
        let marked = self.pending.range(from..last).find(|submission| submission.has_marker());
        let watched = marked.or_else(|| self.pending.get(last))?;
        self.wanted = true;
        watched.watched.store(true, Ordering::Release);
        watched.await_end();
        Some(Arc::clone(watched))
    }

    /// Returns the last that the driver has: when it is complete, all are. The caller waits for it from now on.
    pub(crate) fn await_last(&mut self) -> Option<Arc<Submission>> {
        self.wanted = true;
        let last = self.pending.get(self.taken().checked_sub(1)?)?;
        last.await_end();
        Some(Arc::clone(last))
    }

    /// Returns how many the driver has: they are in front of those that wait at the gate.
    fn taken(&self) -> usize {
        self.pending.partition_point(|submission| submission.progress.is_taken())
    }

    /// Returns the first.
    pub(crate) fn front(&self) -> Option<&Submission> {
        self.pending.front().map(AsRef::as_ref)
    }

    /// Looks how long the first has run, which the device has `begun` as far as is known. To be called after [`Self::collect`] for all
    /// queues, as they wait for each other.
    pub(crate) fn look(&mut self, driver: &impl Driver, now: Instant, begun: bool) -> Look {
        self.learn(now);
        let Learned { usual, served, .. } = self.learned;
        let Some(first) = self.pending.front() else { return Look { usual, served, ..Look::default() } };
        let since = now.saturating_duration_since(std::mem::replace(&mut self.counted, now));
        if !begun || first.held.load(Ordering::Acquire) || !first.can_run(driver) {
            return Look { pending: true, usual, served, ..Look::default() };
        }
        self.ran += since.min(GAP_MAX);
        self.is_long = self.ran >= LONG;
        let together = u32::try_from(self.run()).unwrap_or(u32::MAX).saturating_add(1);
        let running = self.ran / together;
        self.learned.ran = running;
        Look { pending: true, running: Some(running), usual, served, ..Look::default() }
    }

    /// Learns from how many have ended since the last look.
    fn learn(&mut self, now: Instant) {
        let ended = self.pending.front().map_or(self.last, |first| first.number.saturating_sub(1));
        let Learned { at, ended: before, ran, usual, served } = &mut self.learned;
        let looked = std::mem::replace(at, now);
        let since = now.saturating_duration_since(looked).min(GAP_MAX);
        let count = ended.saturating_sub(std::mem::replace(before, ended));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if let Some(each) = since.checked_div(count) {
            // The last look has seen the first of them.
            let took = each.max(std::mem::take(ran));
            *usual = Some(usual.map_or(took, |usual| (usual * 3 + took) / 4));
            *served = Some(looked);
        }
    }

    /// Lets the time for which the first has run count from 0 again.
    pub(crate) fn restart(&mut self) {
        self.ran = Duration::ZERO;
    }

    /// Forgets everything, on a queue that is idle; returns it to be settled.
    pub(crate) fn clear(&mut self) -> Few {
        self.pending.drain(..).inspect(|submission| submission.progress.reach(COMPLETE)).collect()
    }
}

#[cfg(test)]
#[path = "submission_tests.rs"]
mod tests;
