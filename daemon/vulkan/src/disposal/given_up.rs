//! Memory that nothing uses any more, and that the driver takes long to free. A thread frees it, so that the program does not wait for that.

use parking_lot::Mutex;
use std::thread::{self, JoinHandle};

/// The memory of a context that is being freed. All of it is freed when this is dropped.
#[derive(Debug, Default)]
pub struct GivenUp(Mutex<Option<JoinHandle<()>>>);

impl GivenUp {
    /// Frees all of this by dropping it, in a thread if the system has one to give.
    pub fn free<T: Send + 'static>(&self, all: Vec<T>) {
        if all.is_empty() {
            return;
        }
        self.finish();
        // If there is no thread, all of it is freed before this returns.
        let begun = thread::Builder::new().name("free".into()).spawn(move || drop(all));
        *self.0.lock() = begun.ok();
    }

    /// Waits until all is freed. Returns whether something was being freed.
    pub fn finish(&self) -> bool {
        let mut running = self.0.lock();
        running.take().is_some_and(|thread| thread.join().is_ok())
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    /// Memory whose freeing takes until it is let go.
    struct Slow(Receiver<()>, Arc<AtomicBool>);

    impl Drop for Slow {
        fn drop(&mut self) {
            // Without a thread of its own it would wait for this test, which fails then.
            let _ = self.0.recv_timeout(Duration::from_secs(60));
            self.1.store(true, SeqCst);
        }
    }

    #[test]
    fn who_gives_memory_up_goes_on_and_who_needs_it_waits() {
        let ((lets_go, let_go), freed) = (channel(), Arc::new(AtomicBool::new(false)));
        let given_up = GivenUp::default();
        assert!(!given_up.finish(), "nothing is being freed");
        given_up.free(vec![Slow(let_go, Arc::clone(&freed))]);
        assert!(!freed.load(SeqCst), "it was waited for");
        lets_go.send(()).unwrap();
        assert!(given_up.finish());
        assert!(freed.load(SeqCst), "it is freed by now");
        assert!(!given_up.finish(), "once");
        given_up.free(Vec::<Slow>::new());
        assert!(!given_up.finish());
    }
}
