//! The threads of queues, which wait for submissions.

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use std::thread::JoinHandle;

/// A thread that waits for values that are sent to it, and starts with the first value.
#[derive(Debug)]
pub(super) struct Waiting<T>(Mutex<State<T>>);

#[derive(Debug)]
enum State<T> {
    /// No value was sent so far.
    Idle,
    /// The thread takes the values that are sent.
    Runs { sent: Sender<T>, thread: JoinHandle<()> },
    /// The thread has ended, or never starts.
    Ended,
}

impl<T> Waiting<T> {
    /// Begins without a thread.
    pub(super) fn new() -> Self {
        Self(Mutex::new(State::Idle))
    }

    /// Sends a value to the thread, which `start` starts if it does not run. Returns the value if the thread has ended.
    pub(super) fn send(&self, value: T, start: impl FnOnce(Receiver<T>) -> JoinHandle<()>) -> Option<T> {
        let mut state = self.0.lock();
        if matches!(*state, State::Idle) {
            let (sent, arriving) = unbounded();
            *state = State::Runs { sent, thread: start(arriving) };
        }
        match &*state {
            State::Runs { sent, .. } => sent.send(value).err().map(|refused| refused.into_inner()),
            State::Idle | State::Ended => Some(value),
        }
    }

    /// Lets the thread take all values that were sent, and ends the thread.
    pub(super) fn end(&self) {
        let state = std::mem::replace(&mut *self.0.lock(), State::Ended);
        if let State::Runs { sent, thread } = state {
            drop(sent);
            if thread.join().is_err() {
                log::error!("a thread that waits for a queue has panicked, which is a bug");
            }
        }
    }
}

/// Starts a thread that others will wait for. If the thread cannot be started, this process ends and its context is lost: a context without
/// the thread would leave the guest waiting for ever.
pub(super) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).unwrap_or_else(|error| {
        log::error!("the worker ends, as it cannot start a thread ({error}): see --max-tasks, and TasksMax= of the unit");
        std::process::abort()
    })
}
