//! The threads of queues, which wait for submissions.

use std::thread::JoinHandle;

/// Starts a thread that others will wait for. If it cannot be started this process ends, and its context is lost: half of it would
/// leave the guest waiting for ever.
pub(super) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).unwrap_or_else(|error| {
        log::error!("worker ends: no thread ({error}): see --max-tasks, and TasksMax= of the unit");
        std::process::abort()
    })
}

/// Waits for the end of a thread that waits for a queue.
pub(super) fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        log::error!("a thread that waits for a queue has panicked, which is a bug");
    }
}
