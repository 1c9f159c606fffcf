//! Lets the thread that watches submissions sleep while there are none, at the price of one load for each submission.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state of the thread that watches, which it shares with the threads that submit.
#[derive(Clone, Debug, Default)]
pub struct WatchdogWake(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    asleep: AtomicBool,
    ended: Mutex<bool>,
    wake: Condvar,
}

impl WatchdogWake {
    /// Wakes the thread that watches if it sleeps, because of a submission.
    pub fn wake(&self) {
        // Sequentially consistent with the sleeper, which stores that it sleeps and then looks again.
        if self.0.asleep.load(Ordering::SeqCst) {
            let _ended = self.0.ended.lock();
            self.0.asleep.store(false, Ordering::SeqCst);
            self.0.wake.notify_all();
        }
    }

    /// Sleeps until the next submission, unless `look` finds that there was one since the last look.
    pub fn sleep_unless(&self, look: impl FnOnce() -> bool) {
        self.0.asleep.store(true, Ordering::SeqCst);
        if look() {
            self.0.asleep.store(false, Ordering::SeqCst);
            return;
        }
        let mut ended = self.0.ended.lock();
        while !*ended && self.0.asleep.load(Ordering::SeqCst) {
            self.0.wake.wait(&mut ended);
        }
    }

    /// Waits for a moment, or for less if the watch ends.
    pub fn pause(&self, moment: std::time::Duration) {
        let mut ended = self.0.ended.lock();
        if !*ended {
            self.0.wake.wait_for(&mut ended, moment);
        }
    }

    /// Ends all sleep, because there is nothing to watch any more.
    pub fn end(&self) {
        *self.0.ended.lock() = true;
        self.0.wake.notify_all();
    }

    /// Returns whether [`Self::end`] was called.
    pub fn has_ended(&self) -> bool {
        *self.0.ended.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_sleeper_wakes_for_a_submission_and_for_the_end_and_not_before() {
        let watchdog_wake = WatchdogWake::default();
        for end in [false, true] {
            let sleeper = watchdog_wake.clone();
            let thread = std::thread::spawn(move || sleeper.sleep_unless(|| false));
            while !watchdog_wake.0.asleep.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(!thread.is_finished());
            if end {
                watchdog_wake.end()
            } else {
                watchdog_wake.wake()
            }
            thread.join().unwrap();
        }
        assert!(watchdog_wake.has_ended());
    }

    #[test]
    fn what_was_submitted_meanwhile_keeps_it_awake() {
        let watchdog_wake = WatchdogWake::default();
        watchdog_wake.sleep_unless(|| true);
        assert!(!watchdog_wake.0.asleep.load(Ordering::SeqCst));
    }
}
