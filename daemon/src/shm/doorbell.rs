//! Wakes another process: a counter of the kernel that many ring and one waits for.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One end of a doorbell; all ends are alike.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// The end that another process sent.
    #[must_use]
    pub fn of(file: OwnedFd) -> Self {
        Self(file)
    }

    /// Wakes who waits. One call for any number of rings that nobody has heard yet.
    pub fn ring(&self) {
        // The counter is full at 2^64 - 2 rings that nobody hears, or it is no doorbell: then there is nobody to wake.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes note of all rings so far.
    pub fn hear(&self) {
        // Nobody may have rung.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
