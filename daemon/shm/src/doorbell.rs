//! Wakes another process: a counter of the kernel (`eventfd`) that many ring and one listens to.
//!
//! All ends share one file description, so a process that has one can make the counter full or empty, and decide by `O_NONBLOCK` whether reading
//! and writing wait. So the listening process never reads: [`Listener`] takes an edge of the kernel's for each ring, and has no other way. A process that
//! rings waits at most for those that share the doorbell with it: each worker has one of its own.

use readiness::{self, Events};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FileType, Stat, fstat, readlink};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The end that rings.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

/// The end that hears of rings by an epoll instance, and does nothing else with the counter. It hears no more once this is dropped.
#[derive(Debug)]
pub struct Listener {
    epoll: Arc<OwnedFd>,
    file: OwnedFd,
}

impl Doorbell {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// The end that a process sent which this one trusts.
    #[must_use]
    pub fn of(file: OwnedFd) -> Self {
        Self(file)
    }

    /// Wakes the process that listens. One call for any number of rings that it has not heard yet.
    pub fn ring(&self) {
        // Full after 2^64 - 2 rings: then another process has filled it, and the listener was woken.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Listens to it.
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::new`].
    pub fn listen(&self, epoll: &Arc<OwnedFd>, token: u64) -> io::Result<Listener> {
        Listener::new(self.0.try_clone()?, epoll, token)
    }
}

impl Listener {
    /// Has each ring reported by `epoll` under this token; rings that were not heard yet count as one. The sender of `file` need not be trusted.
    ///
    /// # Errors
    ///
    /// It is no doorbell, or the system refuses.
    pub fn new(file: OwnedFd, epoll: &Arc<OwnedFd>, token: u64) -> io::Result<Self> {
        // Asking another kind of file for events may wait for the process that serves it.
        check(file.as_fd())?;
        readiness::watch(epoll, &file, token, Events::EPOLLIN | Events::EPOLLET)?;
        Ok(Self { epoll: Arc::clone(epoll), file })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Other processes hold the same description, so closing this descriptor would not do.
        let _ = readiness::unwatch(&self.epoll, &self.file);
    }
}

impl From<Doorbell> for OwnedFd {
    fn from(doorbell: Doorbell) -> Self {
        doorbell.0
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Checks that a file is such a counter, as far as this process may find out.
fn check(file: BorrowedFd<'_>) -> io::Result<()> {
    let ours = eventfd(0, EventfdFlags::CLOEXEC)?;
    // Files without a place of their own are all one to `fstat`. It waits for no other process, as all files that it is asked about are open already.
    let place =
        |Stat { st_dev, st_ino, st_mode, .. }: Stat| (st_dev, st_ino, FileType::from_raw_mode(st_mode));
    let same = place(fstat(file)?) == place(fstat(&ours)?);
    // A process that may not look names up cannot tell such a file from others of its sort.
    let kind = |file: BorrowedFd<'_>| readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
    let other = kind(file).is_ok_and(|kind_of| kind(ours.as_fd()).is_ok_and(|wanted| wanted != kind_of));
    if same && !other {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not an eventfd"))
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_setfl};
    use std::time::Duration;

    fn epoll() -> Arc<OwnedFd> {
        Arc::new(readiness::instance().unwrap())
    }

    /// Tokens that are reported now.
    fn heard(epoll: &OwnedFd) -> Vec<u64> {
        let mut reported = readiness::Reported::default();
        reported.fetch(epoll, Some(Duration::ZERO)).unwrap();
        reported.events().iter().map(|event| event.data).collect()
    }

    #[test]
    fn each_ring_is_heard_once_though_nobody_reads() {
        let (epoll, doorbell) = (epoll(), Doorbell::new().unwrap());
        let listener = doorbell.listen(&epoll, 7).unwrap();
        for _ in 0..3 {
            assert!(heard(&epoll).is_empty());
            doorbell.ring();
            assert_eq!(heard(&epoll), [7]);
        }
        drop(listener);
        doorbell.ring();
        assert!(heard(&epoll).is_empty());
    }

    #[test]
    fn who_shares_it_can_neither_make_the_listener_wait_nor_silence_another_doorbell() {
        let (epoll, shared, other) = (epoll(), Doorbell::new().unwrap(), Doorbell::new().unwrap());
        let _listeners = [shared.listen(&epoll, 1).unwrap(), other.listen(&epoll, 2).unwrap()];
        // Blocking, full, and empty again.
        fcntl_setfl(&shared, OFlags::empty()).unwrap();
        rustix::io::write(&shared, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert_eq!(heard(&epoll), [1]);
        rustix::io::read(&shared, &mut [0; 8]).unwrap();
        other.ring();
        let told = heard(&epoll);
        assert!(told.contains(&2), "{told:?}");
        shared.ring();
        assert_eq!(heard(&epoll), [1]);
    }

    #[test]
    fn what_is_no_doorbell_is_refused() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let epoll = epoll();
        let other = OwnedFd::from(tempfile::tempfile().unwrap());
        for other in [reader, writer, other, epoll.try_clone().unwrap()] {
            assert!(Listener::new(other.try_clone().unwrap(), &epoll, 0).is_err(), "{other:?}");
        }
    }
}
