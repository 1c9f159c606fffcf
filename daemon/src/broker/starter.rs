//! The thread that starts device processes. Copying a process and loading its program may take long, in particular while guests keep every processor
//! busy, and the broker must not wait for a start.

use super::process::Process;
use crate::options::Start;
use crossbeam_channel::{Receiver, Sender, unbounded};
use shm::{Doorbell, Listener};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The broker's end of the two channels to the thread.
#[derive(Debug)]
pub(super) struct Starter {
    wanted: Sender<Wanted>,
    started: Receiver<Started>,
    /// Reports to the broker's epoll instance that a process was started.
    _listener: Listener,
}

#[derive(Debug)]
struct Wanted {
    vm: usize,
    name: String,
    start: Start,
}

/// The result of a start.
#[derive(Debug)]
pub(super) struct Started {
    /// The VM that the device process was to be started for, by its index.
    pub(super) vm: usize,
    /// The device process is to be the successor of the VM's present one.
    pub(super) follows: bool,
    pub(super) process: io::Result<Process>,
}

impl Starter {
    /// Starts the thread. `epoll` reports under `token` that processes were started.
    ///
    /// # Errors
    ///
    /// The system has no thread or no descriptor left.
    pub(super) fn new(epoll: &Arc<OwnedFd>, token: u64) -> io::Result<Self> {
        let bell = Doorbell::new()?;
        let listener = bell.listen(epoll, token)?;
        let (wanted, requests) = unbounded::<Wanted>();
        let (done, started) = unbounded();
        std::thread::Builder::new().name(THREAD.into()).spawn(move || {
            for Wanted { vm, name, start } in requests {
                if done.send(Started { vm, follows: start.follows, process: begin(&name, &start) }).is_err() {
                    break;
                }
                bell.ring();
            }
        })?;
        Ok(Self { wanted, started, _listener: listener })
    }

    /// Asks the thread to start a device process of a VM.
    pub(super) fn start(&self, vm: usize, name: &str, start: Start) {
        // The thread ends after this sender, so sending succeeds.
        let _ = self.wanted.send(Wanted { vm, name: name.to_owned(), start });
    }

    /// Returns the processes that the thread has started, or could not start, since the last call.
    pub(super) fn started(&self) -> Vec<Started> {
        self.started.try_iter().collect()
    }
}

/// Starts a device process.
fn begin(name: &str, start: &Start) -> io::Result<Process> {
    if cfg!(any(test, feature = "fuzzing")) {
        // This program is a test, which plays device processes itself.
        return Err(io::ErrorKind::Unsupported.into());
    }
    Process::start(name, start)
}

/// The thread's name.
const THREAD: &str = "starter";
