//! A doorbell wakes another process: a counter of the kernel (`eventfd`) that many processes ring and one process listens to.
//!
//! All ends share one file description, so a process that has an end can fill or empty the counter, and decide by `O_NONBLOCK` whether reads and
//! writes wait. So the listening process never reads: [`Listener`] gets an edge of the kernel's for each ring, and no other information. A process
//! that rings waits at most for the processes that share the doorbell; each worker has a doorbell of its own.

use readiness::{self, Events};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FileType, Stat, fstat, readlink};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The end that rings.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

/// The end that gets rings through an epoll instance, and does not use the counter otherwise. After its drop it gets no more rings.
#[derive(Debug)]
pub struct Listener {
    epoll: Arc<OwnedFd>,
    file: OwnedFd,
}

impl Doorbell {
    /// Makes a doorbell.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Takes an end that a trusted process sent.
    #[must_use]
    pub fn of(file: OwnedFd) -> Self {
        Self(file)
    }

    /// Wakes the process that listens. The process wakes once for all rings that it has not heard yet.
    pub fn ring(&self) {
        // The counter is full after 2^64 - 2 rings: then another process has filled it, and the listener was woken.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Listens to this doorbell.
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
    /// The file is no doorbell, or the system refuses.
    pub fn new(file: OwnedFd, epoll: &Arc<OwnedFd>, token: u64) -> io::Result<Self> {
        // A request for events of another kind of file may wait for the process that serves that file.
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
        // Other processes hold the same description, so closing this descriptor would not end the watch.
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

/// Checks that a file is an eventfd, as far as this process can tell.
fn check(file: BorrowedFd<'_>) -> io::Result<()> {
    let ours = eventfd(0, EventfdFlags::CLOEXEC)?;
    // To `fstat`, all files without a path are the same file. It waits for no other process, because the files are already open.
    let place =
        |Stat { st_dev, st_ino, st_mode, .. }: Stat| (st_dev, st_ino, FileType::from_raw_mode(st_mode));
    let same = place(fstat(file)?) == place(fstat(&ours)?);
    // A process that may not look up names cannot tell an eventfd from other such files.
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
        // The counter is made blocking, full, and empty again.
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
