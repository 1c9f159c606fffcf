//! The thread that waits for submissions of one queue while somebody has to know at once that they are complete.

use super::device::Device;
use super::queue::Queue;
use super::submission::Submission;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// The running thread.
#[derive(Debug)]
pub struct Watcher {
    watched: Sender<Arc<Submission>>,
    thread: JoinHandle<()>,
}

impl Watcher {
    /// Starts it for a queue.
    pub fn start(device: Arc<Device>, queue: Weak<Queue>) -> Self {
        let (watched, arriving) = unbounded();
        let thread = start_thread("watch", move || watch(&device, &queue, &arriving));
        Self { watched, thread }
    }

    /// Waits for another, whose marker is freed or given back then.
    pub fn watch(&self, submission: Arc<Submission>) {
        // The thread ends after this value.
        let _ = self.watched.send(submission);
    }

    /// Waits for what is left and ends.
    pub fn end(self) {
        drop(self.watched);
        if self.thread.join().is_err() {
            log::error!("a queue's watcher panicked");
        }
    }
}

/// Starts a thread that somebody comes to wait for. Without it this process ends, and its context is lost: half of it would leave the
/// guest waiting for ever.
pub(super) fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).unwrap_or_else(|error| {
        log::error!("worker ends: no thread ({error}): see --max-tasks, and TasksMax= of the unit");
        std::process::abort()
    })
}

fn watch(device: &Device, queue: &Weak<Queue>, arriving: &Receiver<Arc<Submission>>) {
    for submission in arriving {
        Queue::wait_for(queue, device, &submission);
        Queue::ended(queue, device, &submission);
        if let Some(queue) = queue.upgrade() {
            queue.submitted_at_once();
        }
    }
}
