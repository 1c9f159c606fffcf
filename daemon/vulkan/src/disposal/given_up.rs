//! Memory that nothing uses any more, and that the driver takes long to free. A thread frees it, so that the program does not wait.

use super::freed::Freed;
use parking_lot::Mutex;
use std::thread::{self, JoinHandle};

/// The memory of a context that is being freed. All of it is freed when this value is dropped.
#[derive(Debug)]
pub struct GivenUp {
    running: Mutex<Option<JoinHandle<()>>>,
    freed: Freed,
}

impl GivenUp {
    /// Begins with no memory to free. Memory that is freed later is counted in `freed`.
    pub fn new(freed: Freed) -> Self {
        Self { running: Mutex::default(), freed }
    }

    /// Frees all of this by dropping it, in a thread if the system can start one.
    pub fn free<T: Send + 'static>(&self, all: Vec<T>) {
        if all.is_empty() {
            return;
        }
        self.finish();
        let freed = self.freed.clone();
        let free = move || {
            drop(all);
            freed.count();
        };
        // If no thread can be started, all of it is freed before this function returns.
        *self.running.lock() = thread::Builder::new().name("free".into()).spawn(free).ok();
    }

    /// Waits for the thread that frees memory. Returns whether there was one and it ended without a panic.
    pub fn finish(&self) -> bool {
        let mut running = self.running.lock();
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

    /// Memory whose freeing lasts until the test allows its end.
    struct Slow(Receiver<()>, Arc<AtomicBool>);

    impl Drop for Slow {
        fn drop(&mut self) {
            // If no thread freed it, this would wait for the test itself, which would then fail.
            let _ = self.0.recv_timeout(Duration::from_secs(60));
            self.1.store(true, SeqCst);
        }
    }

    #[test]
    fn who_gives_memory_up_goes_on_and_who_needs_it_waits() {
        let ((lets_go, let_go), freed) = (channel(), Arc::new(AtomicBool::new(false)));
        let count = Freed::default();
        let given_up = GivenUp::new(count.clone());
        assert!(!given_up.finish(), "nothing is being freed");
        given_up.free(vec![Slow(let_go, Arc::clone(&freed))]);
        assert_eq!((freed.load(SeqCst), count.so_far()), (false, 0), "it was waited for");
        lets_go.send(()).unwrap();
        assert!(given_up.finish());
        assert_eq!((freed.load(SeqCst), count.so_far()), (true, 1), "it is freed by now");
        assert!(!given_up.finish(), "once");
        given_up.free(Vec::<Slow>::new());
        assert!(!given_up.finish());
    }
}
