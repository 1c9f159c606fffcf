//! A thread that closes descriptors of device nodes and of drivers' memory.
//!
//! When the last of these descriptors is closed, the kernel's driver frees the memory of a process, and may first have to stop that process's work on
//! the GPU. The device thread does not wait for that.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

/// The handle of the thread, which starts with the first descriptor. When this is dropped, it waits until all descriptors are closed.
#[derive(Debug, Default)]
pub(in crate::serve) struct Closer {
    thread: Option<(Sender<OwnedFd>, JoinHandle<()>)>,
    /// The number of descriptors that were given, and of those that are closed.
    given: u64,
    closed: Arc<AtomicU64>,
}

/// The descriptors that were given up to a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct Given(u64);

#[cfg(test)]
impl Given {
    /// The first `count` descriptors.
    pub(in crate::serve) fn of_tests(count: u64) -> Self {
        Self(count)
    }
}

impl Closer {
    /// Has the thread close these descriptors soon.
    pub(in crate::serve) fn close(&mut self, fds: impl IntoIterator<Item = OwnedFd>) {
        for fd in fds {
            if self.thread.is_none() {
                self.thread = start(Arc::clone(&self.closed));
            }
            // Without a thread the descriptor is closed here.
            if let Some((sender, _)) = &self.thread {
                if sender.send(fd).is_ok() {
                    self.given += 1;
                    continue;
                }
                log::error!(
                    "the thread that closes descriptors has ended, which is a bug: the device thread closes descriptors from now on"
                );
            }
        }
    }

    /// Returns whether everything is closed.
    pub(in crate::serve) fn is_done(&self) -> bool {
        self.left() == 0
    }

    /// Returns the number of descriptors that are not closed yet.
    pub(in crate::serve) fn left(&self) -> u64 {
        self.given.saturating_sub(self.closed.load(Ordering::Relaxed))
    }

    /// Returns all descriptors that were given until now.
    pub(in crate::serve) fn given(&self) -> Given {
        Given(self.given)
    }

    /// Returns whether these are closed.
    pub(in crate::serve) fn has_closed(&self, Given(given): Given) -> bool {
        self.closed.load(Ordering::Relaxed) >= given
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // A panic has ended the process already.
            let _ = thread.join();
        }
    }
}

fn start(closed: Arc<AtomicU64>) -> Option<(Sender<OwnedFd>, JoinHandle<()>)> {
    let (sender, closing) = channel();
    let thread = Builder::new().name("closer".into());
    let thread = thread.spawn(move || {
        for fd in closing {
            drop::<OwnedFd>(fd);
            closed.fetch_add(1, Ordering::Relaxed);
        }
    });
    let thread = thread.ok()?;
    Some((sender, thread))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// The time after which a test counts as hung.
    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn it_is_done_when_everything_is_closed() {
        let (mut closer, begun) = (Closer::default(), Instant::now());
        assert!(closer.is_done());
        let before = closer.given();
        closer.close((0..8).map(|_| std::fs::File::open("/dev/null").unwrap().into()));
        let given = closer.given();
        assert!(closer.has_closed(before) && given != before);
        while !closer.has_closed(given) {
            assert!(begun.elapsed() < LONG);
            std::thread::yield_now();
        }
        assert!(closer.is_done() && closer.left() == 0);
    }
}
