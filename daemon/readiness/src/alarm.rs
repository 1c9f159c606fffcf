//! A timer that wakes a loop.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A timer by the monotonic clock. Its descriptor is readable from the time that was set until [`Self::rang`].
#[derive(Debug)]
pub struct Alarm {
    timer: OwnedFd,
    /// The time that was set, in nanoseconds.
    at: Option<u64>,
}

impl Alarm {
    /// Makes an alarm that is not set.
    ///
    /// # Errors
    ///
    /// The system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { timer: timerfd_create(TimerfdClockId::Monotonic, flags)?, at: None })
    }

    /// Sets the alarm to a time of the clock, in nanoseconds; none: it does not ring. A time before `soonest` counts as that time.
    ///
    /// # Errors
    ///
    /// The system refuses the time.
    pub fn set(&mut self, at: Option<u64>, soonest: impl FnOnce() -> u64) -> io::Result<()> {
        if at == self.at {
            return Ok(());
        }
        self.at = at;
        // Zero means never.
        let at = at.map_or(0, |at| at.max(soonest()));
        let it_value = Timespec {
            tv_sec: i64::try_from(at / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (at % 1_000_000_000) as _,
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
        Ok(())
    }

    /// Takes in that the alarm has rung. It is not set from now on.
    pub fn rang(&mut self) {
        self.at = None;
        // The count is of no use, but the descriptor stays readable until it is read.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::{look, within};
    use rustix::event::PollFlags;
    use std::time::Duration;

    #[test]
    fn it_rings_at_the_time_that_was_set_but_no_sooner_than_may_be_and_not_once_it_is_set_back() {
        let mut alarm = Alarm::new().unwrap();
        let rings = |alarm: &Alarm| !look(alarm, PollFlags::IN).is_empty();
        let long = Duration::from_secs(600);
        assert!(!rings(&alarm));
        // The first second of the clock is long over.
        alarm.set(Some(0), || 1_000_000_000).unwrap();
        assert_eq!(within(&alarm, PollFlags::IN, long), Ok(PollFlags::IN));
        alarm.rang();
        assert!(!rings(&alarm));
        alarm.set(Some(0), || u64::MAX / 2).unwrap();
        assert!(!rings(&alarm), "sooner than it may");
        alarm.set(Some(1), || 1).unwrap();
        assert_eq!(within(&alarm, PollFlags::IN, long), Ok(PollFlags::IN));
        alarm.set(None, || 1).unwrap();
        assert!(!rings(&alarm));
    }
}
