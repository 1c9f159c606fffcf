//! The thread that waits for submissions of one queue while their completion has to be known at once.

use super::submission::Submission;
use crossbeam_channel::{Sender, unbounded};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The running thread.
#[derive(Debug)]
pub(crate) struct Watcher {
    watched: Sender<Arc<Submission>>,
    thread: JoinHandle<()>,
}

impl Watcher {
    /// Starts the thread; `wait` waits for one submission and does what is due at its end.
    pub(crate) fn start(wait: impl Fn(&Submission) + Send + 'static) -> Self {
        let (watched, arriving) = unbounded::<Arc<Submission>>();
        let thread = start_thread("watch", move || arriving.iter().for_each(|submission| wait(&submission)));
        Self { watched, thread }
    }

    /// Lets the thread wait for another submission, whose marker is freed or given back then.
    pub(crate) fn watch(&self, submission: Arc<Submission>) {
        // The thread ends after this value.
        let _ = self.watched.send(submission);
    }

    /// Lets the thread wait for what is left, and ends it.
    pub(crate) fn end(self) {
        drop(self.watched);
        if self.thread.join().is_err() {
            log::error!("the thread that watches a queue has panicked, which is a bug");
        }
    }
}

/// Starts a thread that others will wait for. If it cannot be started this process ends, and its context is lost: half of it would
/// leave the guest waiting for ever.
pub(super) fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).unwrap_or_else(|error| {
        log::error!("worker ends: no thread ({error}): see --max-tasks, and TasksMax= of the unit");
        std::process::abort()
    })
}
