//! The signal by which the operator ends a device process, and the time that the frontend and the workers then have.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time that the frontend has, after a signal, to unmap what it has mapped.
const FRONTEND_PATIENCE: Duration = Duration::from_secs(5);
/// Time that workers and their launcher have to end after that: more than `Workers::end_all` takes at most.
const WORKERS_PATIENCE: Duration = Duration::from_secs(13);
/// The number of pieces in which such a time passes: while the process or its machine is stopped, one piece passes at most.
const END_PIECES: u32 = 100;

/// Takes SIGTERM and SIGINT from now on; a signal that arrives before the device is served ends the device when it is. Starts no thread.
pub fn take_signals() -> io::Result<Signals> {
    Signals::new([SIGTERM, SIGINT])
}

/// A socket that becomes readable with the signal.
#[derive(Debug)]
pub(in crate::serve) struct EndRequest {
    socket: UnixStream,
    /// The frontend is gone: the time that passes from now on is that of the workers.
    frontend_is_gone: Arc<AtomicBool>,
}

impl EndRequest {
    /// Waits for a signal on a separate thread. If the process has not ended some seconds after the signal, because its frontend does not answer or
    /// its workers do not end, the thread exits the process at once, which ends the workers too.
    ///
    /// # Errors
    ///
    /// The system has no socket or thread left.
    pub(in crate::serve) fn watch(mut signals: Signals) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let request = Self::from(socket);
        let frontend_is_gone = Arc::clone(&request.frontend_is_gone);
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            if signals.forever().next().is_some() {
                drop(theirs);
                pass(FRONTEND_PATIENCE);
                if !frontend_is_gone.load(Ordering::Relaxed) {
                    log::error!("the frontend does not answer: this process ends without it");
                    std::process::exit(1);
                }
                pass(WORKERS_PATIENCE);
                log::error!("workers do not end: this process ends without waiting for them");
                std::process::exit(1);
            }
        })?;
        Ok(request)
    }

    /// Notes that the process waits for no frontend any more, as it ends.
    pub(in crate::serve) fn frontend_is_gone(&self) {
        self.frontend_is_gone.store(true, Ordering::Relaxed);
    }
}

/// A request that comes from the other end of a socket, without a thread that waits for a signal.
impl From<UnixStream> for EndRequest {
    fn from(socket: UnixStream) -> Self {
        Self { socket, frontend_is_gone: Arc::default() }
    }
}

impl AsFd for EndRequest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sleeps until this process and its machine have run for `time`.
fn pass(time: Duration) {
    (0..END_PIECES).for_each(|_| std::thread::sleep(time / END_PIECES));
}
