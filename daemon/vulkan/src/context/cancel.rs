//! A flag that ends waits: for good when a ring is destroyed or the context ends, or for now when the context comes to rest.

use super::error::{ContextLost, Fault};
use ash::vk;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

/// The flag, which the waiting thread and the thread that ends the wait share.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    flag: AtomicU8,
    /// The time since which the interrupted command waits, which is the next to be executed again.
    began: Mutex<Option<Instant>>,
}

/// The reason why a wait has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// For good: the outcome is not needed any more.
    Cancelled,
    /// For now: the command leaves no trace, and is executed again from its start.
    Interrupted,
}

/// The error of a wait that was interrupted, which tells nothing about the awaited event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

/// Waits go on.
const RUNNING: u8 = 0;
/// Waits end for now.
const INTERRUPTED: u8 = 1;
/// Waits end for good.
const CANCELLED: u8 = 2;

impl Cancel {
    /// Ends every wait that looks at this flag, for good.
    pub fn cancel(&self) {
        self.0.flag.store(CANCELLED, Ordering::SeqCst);
    }

    /// Ends every wait that looks at this flag, until [`Self::resume`]; does nothing if waits have ended for good.
    pub fn interrupt(&self) {
        self.change(RUNNING, INTERRUPTED);
    }

    /// Takes an interruption back.
    pub fn resume(&self) {
        self.change(INTERRUPTED, RUNNING);
    }

    /// Returns whether waits must end, for whatever reason: a single load.
    pub fn is_stopped(&self) -> bool {
        self.0.flag.load(Ordering::Acquire) != RUNNING
    }

    /// Returns whether waits must end for good.
    pub fn is_cancelled(&self) -> bool {
        self.0.flag.load(Ordering::Acquire) == CANCELLED
    }

    /// Returns whether waits must end for now.
    pub fn is_interrupted(&self) -> bool {
        self.0.flag.load(Ordering::Acquire) == INTERRUPTED
    }

    /// Returns why waits must end, if they must.
    pub fn stop(&self) -> Option<Stop> {
        match self.0.flag.load(Ordering::Acquire) {
            RUNNING => None,
            INTERRUPTED => Some(Stop::Interrupted),
            _ => Some(Stop::Cancelled),
        }
    }

    /// Begins the wait of a command. Returns the time since which the command waits, which includes its wait before an interruption.
    pub(crate) fn begins(&self) -> Instant {
        self.0.began.lock().take().unwrap_or_else(Instant::now)
    }

    /// Stops a command that has waited since `began`, for a reason; if it is only interrupted, it will begin once more.
    pub(crate) fn stops(&self, began: Instant, stop: Stop) -> Fault {
        *self.0.began.lock() = Some(began).filter(|_| stop == Stop::Interrupted);
        stop.into()
    }

    fn change(&self, from: u8, to: u8) {
        // A flag with another value than `from` stays as it is.
        let _ = self.0.flag.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl From<Interrupted> for ContextLost {
    fn from(_: Interrupted) -> Self {
        Self::interruption()
    }
}

impl From<Interrupted> for Fault {
    fn from(interrupted: Interrupted) -> Self {
        Self::Lost(interrupted.into())
    }
}

/// A wait that is cancelled ends like a wait on a lost device.
impl From<Stop> for Fault {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Cancelled => vk::Result::ERROR_DEVICE_LOST.into(),
            Stop::Interrupted => Interrupted.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::cause::Cause;

    #[test]
    fn an_interruption_is_taken_back_and_an_end_is_not() {
        let cancel = Cancel::default();
        assert_eq!((cancel.stop(), cancel.is_stopped()), (None, false));
        cancel.interrupt();
        assert_eq!((cancel.stop(), cancel.is_cancelled()), (Some(Stop::Interrupted), false));
        assert!(cancel.is_stopped() && cancel.is_interrupted());
        cancel.resume();
        assert!(!cancel.is_stopped() && !cancel.is_interrupted());
        cancel.cancel();
        cancel.interrupt();
        cancel.resume();
        assert_eq!((cancel.stop(), cancel.is_cancelled()), (Some(Stop::Cancelled), true));
    }

    #[test]
    fn an_interruption_is_told_from_a_lost_context_and_keeps_no_name() {
        let lost = ContextLost::from(Interrupted);
        assert!(lost.is_interruption() && lost.clone().within(1).is_interruption());
        assert!(!ContextLost::from(Cause::Ended).is_interruption());
        assert!(matches!(Fault::from(Stop::Cancelled), Fault::Failed(_)));
    }
}
