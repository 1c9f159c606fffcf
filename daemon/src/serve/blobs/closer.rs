//! Closes descriptors of device nodes on a thread of its own.
//!
//! With the last of them a kernel's driver frees the memory of a process, and may have to stop its work on the GPU before. The device thread does not
//! wait for that.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

/// A thread, once there was a descriptor to close. When this is dropped, all descriptors have been closed, as at the end of the process.
#[derive(Debug, Default)]
pub(in crate::serve) struct Closer {
    thread: Option<(Sender<OwnedFd>, JoinHandle<()>)>,
    /// Descriptors that are not closed yet.
    left: Arc<AtomicUsize>,
}

impl Closer {
    /// Closes these, soon.
    pub(in crate::serve) fn close(&mut self, fds: impl IntoIterator<Item = OwnedFd>) {
        for fd in fds {
            if self.thread.is_none() {
                self.thread = start(Arc::clone(&self.left));
            }
            // Without a thread it is closed here.
            if let Some((sender, _)) = &self.thread {
                self.left.fetch_add(1, Ordering::Relaxed);
                if sender.send(fd).is_ok() {
                    continue;
                }
                log::error!(
                    "the thread that closes device nodes is gone, which is a bug: the device thread closes them"
                );
            }
        }
    }

    /// Returns whether everything is closed.
    pub(in crate::serve) fn is_done(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
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

fn start(left: Arc<AtomicUsize>) -> Option<(Sender<OwnedFd>, JoinHandle<()>)> {
    let (sender, closing) = channel();
    let thread = Builder::new().name("closer".into());
    let thread = thread.spawn(move || {
        for fd in closing {
            drop::<OwnedFd>(fd);
            left.fetch_sub(1, Ordering::Relaxed);
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
        closer.close((0..8).map(|_| std::fs::File::open("/dev/null").unwrap().into()));
        while !closer.is_done() {
            assert!(begun.elapsed() < LONG);
            std::thread::yield_now();
        }
    }
}
