//! Measures how long the submissions of a queue run. The watchdog's thread looks every 50 ms.
//!
//! A submission may wait for as long as a program likes before it runs: for a semaphore that a host thread or another queue signals
//! later (Vulkan 7.4.1, wait-before-signal). So its time begins when its waits are over and all earlier submissions to its queue are
//! complete. A wait for an event inside of a command buffer keeps the queue busy, and counts.

use crate::logical::submitted::Number;
use crate::logical::timeline::Look;
use std::time::{Duration, Instant};

/// The longest time that counts between two looks. A thread that looks later was stopped, or had no processor, and cannot know which submission
/// ran meanwhile.
pub(super) const GAP_MAX: Duration = Duration::from_millis(200);

/// The run time from which a submission counts as long: it must then have a marker of its own.
const LONG: Duration = Duration::from_millis(10);

/// The run times of the first submission and of earlier ones.
#[derive(Debug)]
pub(super) struct Pace {
    /// The run time of the first submission, up to `counted`.
    ran: Duration,
    counted: Instant,
    /// True if the first submission was found to run long.
    is_long: bool,
    learned: Learned,
}

/// The time that submissions take, as far as it is known.
#[derive(Debug)]
struct Learned {
    /// The last look.
    at: Instant,
    /// The number of submissions that had ended by then.
    ended: Number,
    /// The run time of the first submission at the last look.
    ran: Duration,
    /// The run time of ended submissions, on average of late and as an upper bound.
    usual: Option<Duration>,
    /// The last look before the one that found a submission to have ended.
    served: Option<Instant>,
}

impl Pace {
    /// Begins with a queue that has no submissions.
    pub(super) fn new(now: Instant) -> Self {
        let learned = Learned { at: now, ended: 0, ran: Duration::ZERO, usual: None, served: None };
        Self { ran: Duration::ZERO, counted: now, is_long: false, learned }
    }

    /// Notes that another submission is the first.
    pub(super) fn begin(&mut self, now: Instant) {
        (self.ran, self.counted) = (Duration::ZERO, now);
    }

    /// Sets the run time of the first submission to 0.
    pub(super) fn restart(&mut self) {
        self.ran = Duration::ZERO;
    }

    /// Returns whether the first submission was found to run long.
    pub(super) fn is_long(&self) -> bool {
        self.is_long
    }

    /// Looks at a queue whose submissions up to the number `ended` have ended. `together` is the number of submissions that run now and end at one
    /// marker, and share the time; it is none if the first submission cannot run, or the queue has none.
    pub(super) fn look(
        &mut self,
        now: Instant,
        ended: Number,
        pending: bool,
        together: Option<usize>,
    ) -> Look {
        self.learned.look(now, ended);
        let Learned { usual, served, .. } = self.learned;
        let look = Look { pending, usual, served, ..Look::default() };
        if !pending {
            return look;
        }
        let since = now.saturating_duration_since(std::mem::replace(&mut self.counted, now));
        let Some(together) = together else { return look };
        self.ran += since.min(GAP_MAX);
        self.is_long = self.ran >= LONG;
        let running = self.ran / u32::try_from(together.max(1)).unwrap_or(u32::MAX);
        self.learned.ran = running;
        Look { running: Some(running), ..look }
    }
}

impl Learned {
    /// Learns from the number of submissions that have ended since the last look.
    fn look(&mut self, now: Instant, ended: Number) {
        let looked = std::mem::replace(&mut self.at, now);
        let since = now.saturating_duration_since(looked).min(GAP_MAX);
        let count = ended.saturating_sub(std::mem::replace(&mut self.ended, ended));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if let Some(each) = since.checked_div(count) {
            // The last look has seen the first of these submissions run.
            let took = each.max(std::mem::take(&mut self.ran));
            self.usual = Some(self.usual.map_or(took, |usual| (usual * 3 + took) / 4));
            self.served = Some(looked);
        }
    }
}
