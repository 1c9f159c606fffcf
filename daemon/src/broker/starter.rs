//! The thread that starts device processes. Copying a process and loading its program takes as long as the system likes, all the more while
//! guests keep every processor busy, and the broker waits for nobody.

use super::process::Process;
use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::event::{EventfdFlags, eventfd};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The broker's end.
#[derive(Debug)]
pub(super) struct Starter {
    wanted: Sender<Wanted>,
    started: Receiver<Started>,
    /// Readable when something was started.
    bell: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Wanted {
    vm: usize,
    name: String,
    arguments: Vec<OsString>,
}

/// The VM that a device process was to be started for, by its index, and the process.
pub(super) type Started = (usize, io::Result<Process>);

impl Starter {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system has no thread or no descriptor left.
    pub(super) fn new() -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (wanted, requests) = unbounded::<Wanted>();
        let (done, started) = unbounded();
        let ring = Arc::clone(&bell);
        std::thread::Builder::new().name(THREAD.into()).spawn(move || {
            for Wanted { vm, name, arguments } in requests {
                if done.send((vm, Process::start(&name, &arguments))).is_err() {
                    break;
                }
                // It is full only if it is readable.
                let _ = rustix::io::write(&ring, &1u64.to_ne_bytes());
            }
        })?;
        Ok(Self { wanted, started, bell })
    }

    /// Has the device process of a VM started.
    pub(super) fn start(&self, vm: usize, name: &str, arguments: Vec<OsString>) {
        // The thread ends after this value.
        let _ = self.wanted.send(Wanted { vm, name: name.to_owned(), arguments });
    }

    /// What was started since this was called last.
    pub(super) fn started(&self) -> Vec<Started> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.started.try_iter().collect()
    }
}

impl AsFd for Starter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The thread's name.
const THREAD: &str = "starter";
