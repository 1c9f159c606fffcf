//! The readiness of descriptors: the epoll instances at which loops wait, and a look at a single descriptor.
//!
//! The crate `epoll` takes descriptors as numbers, which may be closed. This module takes borrowed descriptors, which are open. `rustix` makes the
//! instances: the crate's `create` returns a number, which only unsafe code can turn into an owned descriptor.

#![forbid(unsafe_code)]

mod alarm;

pub use alarm::Alarm;
use epoll::ControlOptions;
pub use epoll::{Event, Events};
use rustix::event::epoll::{CreateFlags, create};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Makes an epoll instance, close-on-exec.
pub fn instance() -> io::Result<OwnedFd> {
    Ok(create(CreateFlags::CLOEXEC)?)
}

/// Has `events` of a descriptor reported by an epoll instance, with `token`.
pub fn watch(epoll: impl AsFd, fd: impl AsFd, token: u64, events: Events) -> io::Result<()> {
    control(epoll, ControlOptions::EPOLL_CTL_ADD, fd, Event::new(events, token))
}

/// Changes the events that are reported of a watched descriptor.
pub fn watch_for(epoll: impl AsFd, fd: impl AsFd, token: u64, events: Events) -> io::Result<()> {
    control(epoll, ControlOptions::EPOLL_CTL_MOD, fd, Event::new(events, token))
}

/// Ends the reports of a descriptor.
pub fn unwatch(epoll: impl AsFd, fd: impl AsFd) -> io::Result<()> {
    control(epoll, ControlOptions::EPOLL_CTL_DEL, fd, Event::new(Events::empty(), 0))
}

fn control(epoll: impl AsFd, option: ControlOptions, fd: impl AsFd, event: Event) -> io::Result<()> {
    epoll::ctl(epoll.as_fd().as_raw_fd(), option, fd.as_fd().as_raw_fd(), event)
}

/// Events that an epoll instance has reported.
pub struct Reported {
    room: [Event; EVENTS_MAX],
    count: usize,
}

/// The most events that are taken at once.
pub const EVENTS_MAX: usize = 64;

impl Default for Reported {
    fn default() -> Self {
        Self { room: [Event { events: 0, data: 0 }; EVENTS_MAX], count: 0 }
    }
}

impl Reported {
    /// Returns the events, in the order of the system.
    pub fn events(&self) -> &[Event] {
        &self.room[..self.count]
    }

    /// Forgets the events.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Takes the present events, or waits for events, at most for `limit`, which is rounded up to milliseconds. Returns whether there are any; a
    /// signal ends the wait.
    pub fn fetch(&mut self, epoll: impl AsFd, limit: Option<Duration>) -> io::Result<bool> {
        let limit = limit.map_or(FOREVER, milliseconds);
        self.count = match epoll::wait(epoll.as_fd().as_raw_fd(), limit, &mut self.room) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        Ok(self.count > 0)
    }
}

/// The value that means a wait without a limit.
const FOREVER: i32 = -1;

fn milliseconds(limit: Duration) -> i32 {
    let rest = u64::from(limit.subsec_nanos().div_ceil(1_000_000));
    i32::try_from(limit.as_secs().saturating_mul(1000).saturating_add(rest)).unwrap_or(i32::MAX)
}

/// Waits until one of the `wanted` events of a descriptor has come, or its other end is gone, at most for `limit`. Returns the events that have come.
///
/// # Errors
///
/// A signal has come, or the system refuses.
pub fn within(fd: impl AsFd, wanted: PollFlags, limit: Duration) -> Result<PollFlags, Errno> {
    let limit = Timespec::try_from(limit).map_err(|_| Errno::INVAL)?;
    let mut fds = [PollFd::new(&fd, wanted)];
    poll(&mut fds, Some(&limit))?;
    Ok(fds[0].revents())
}

/// Waits for up to `limit` until no process holds the other end of a pipe, a socket or a terminal. Returns whether no process holds it.
///
/// A child that this process starts meanwhile has copies of all descriptors until it executes its program. So a closed end may stay open for a
/// moment.
///
/// A signal does not end the wait.
pub fn has_ended(fd: impl AsFd, limit: Duration) -> bool {
    let begun = Instant::now();
    loop {
        match within(&fd, PollFlags::empty(), limit.saturating_sub(begun.elapsed())) {
            Err(Errno::INTR) => {}
            seen => return seen.is_ok_and(|seen| seen.contains(PollFlags::HUP)),
        }
    }
}

/// Returns the `wanted` events that a descriptor has now, and whether its other end is gone.
pub fn look(fd: impl AsFd, wanted: PollFlags) -> PollFlags {
    within(fd, wanted, Duration::ZERO).unwrap_or(PollFlags::empty())
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// A limit that no test reaches.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn events_are_reported_while_and_as_they_are_wanted() {
        let (epoll, (mut ours, theirs)) = (instance().unwrap(), UnixStream::pair().unwrap());
        let mut reported = Reported::default();
        let mut now = || {
            reported.fetch(&epoll, Some(Duration::ZERO)).unwrap();
            reported.events().iter().map(|event| (event.data, event.events)).collect::<Vec<_>>()
        };
        watch(&epoll, &theirs, 7, Events::EPOLLIN).unwrap();
        assert_eq!(now(), []);
        ours.write_all(b"x").unwrap();
        assert_eq!(now(), [(7, Events::EPOLLIN.bits())]);
        watch_for(&epoll, &theirs, u64::MAX, Events::EPOLLOUT).unwrap();
        assert_eq!(now(), [(u64::MAX, Events::EPOLLOUT.bits())]);
        unwatch(&epoll, &theirs).unwrap();
        assert_eq!(now(), []);
        assert!(unwatch(&epoll, &theirs).is_err());
    }

    #[test]
    fn a_limit_is_never_cut_short() {
        assert_eq!(milliseconds(Duration::ZERO), 0);
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_micros(1_001)), 2);
        assert_eq!(milliseconds(Duration::from_secs(2)), 2_000);
        assert_eq!(milliseconds(Duration::MAX), i32::MAX);
        let (epoll, begin) = (instance().unwrap(), Instant::now());
        assert!(!Reported::default().fetch(&epoll, Some(Duration::from_micros(1_500))).unwrap());
        assert!(begin.elapsed() >= Duration::from_micros(1_500));
    }

    #[test]
    fn a_look_sees_what_is_there_and_the_end_of_the_peer() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(look(&theirs, PollFlags::IN | PollFlags::OUT), PollFlags::OUT);
        assert_eq!(within(&theirs, PollFlags::IN, Duration::from_micros(10)), Ok(PollFlags::empty()));
        ours.write_all(b"x").unwrap();
        assert_eq!(within(&theirs, PollFlags::IN, LONG), Ok(PollFlags::IN));
        drop(ours);
        // A child that another test starts at the same time has a copy of the end until the child executes its program.
        assert!(has_ended(&theirs, LONG));
        assert!(look(&theirs, PollFlags::empty()).contains(PollFlags::HUP));
    }
}
