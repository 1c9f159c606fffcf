//! Closes descriptors of devices beside everything else.
//!
//! With the last of them a kernel's driver frees what a process had, and may have to stop what still runs on the GPU before. The device
//! thread does not wait for that.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

/// A thread, once there was something to close. When this is dropped, everything has been closed, as it would be at the end of the process.
#[derive(Debug, Default)]
pub(in crate::serve) struct Closer(Option<(Sender<OwnedFd>, JoinHandle<()>)>);

impl Closer {
    /// Closes these, soon.
    pub(in crate::serve) fn close(&mut self, fds: impl IntoIterator<Item = OwnedFd>) {
        for fd in fds {
            if self.0.is_none() {
                self.0 = start();
            }
            // Without a thread it is closed here.
            if let Some((sender, _)) = &self.0
                && sender.send(fd).is_err()
            {
                log::error!(
                    "the thread that closes device nodes is gone, which is a bug: the device thread closes them"
                );
            }
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.0.take() {
            drop(sender);
            // A panic has ended the process already.
            let _ = thread.join();
        }
    }
}

fn start() -> Option<(Sender<OwnedFd>, JoinHandle<()>)> {
    let (sender, closing) = channel();
    let thread = Builder::new().name("closer".into());
    let thread = thread.spawn(move || closing.into_iter().for_each(drop::<OwnedFd>)).ok()?;
    Some((sender, thread))
}
