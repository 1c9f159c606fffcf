//! A last resort against descriptors of a frontend that could block the device thread: a file whose pages, attributes or counters come late or never
//! blocks a process that touches it. No flag or earlier check excludes that for good, as the frontend can change the file.
//!
//! The device thread says when it begins a step and when it waits. If the device thread stays at one step for too long, another thread ends the
//! process, and with it the session and all workers. Time in which the whole process stood still, as on a machine that was suspended, does
//! not count: the thread counts looks, not seconds.

use outside::Span;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The counter of the device thread's steps: it goes up with each step that begins; its lowest bit says that the thread waits.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Progress(Arc<AtomicU64>);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(250);
const WAITS: u64 = 1;

impl Default for Progress {
    /// Makes the counter of a device thread that waits.
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(WAITS)))
    }
}

impl Progress {
    /// The device thread begins a step.
    pub(in crate::serve) fn begins(&self) {
        self.0.store((self.0.load(Ordering::Relaxed) | WAITS).wrapping_add(1), Ordering::Relaxed);
    }

    /// The device thread waits for an event.
    pub(in crate::serve) fn waits(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) | WAITS, Ordering::Relaxed);
    }

    /// Ends the process if the device thread stays at the same step for `limit`.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub(in crate::serve) fn watch(&self, limit: Duration) -> std::io::Result<()> {
        let progress = self.clone();
        let thread = std::thread::Builder::new().name("progress".into());
        thread.spawn(move || {
            let mut stands = Stands::default();
            while !stands.look(progress.0.load(Ordering::Relaxed), limit) {
                std::thread::sleep(LOOK);
            }
            log::error!(
                "limit frontend-timeout ({}) reached: the device process has waited too long for memory or a file of the frontend, and \
                 ends; raise the limit for a slow frontend",
                Span(limit)
            );
            std::process::exit(1);
        })?;
        Ok(())
    }
}

/// The number of times that the same step was seen.
#[derive(Debug, Default)]
struct Stands {
    seen: u64,
    looks: u32,
}

impl Stands {
    /// Looks once more, and returns whether the same step has lasted for too long.
    fn look(&mut self, now: u64, limit: Duration) -> bool {
        let same = now == self.seen && now & WAITS == 0;
        self.looks = if same { self.looks + 1 } else { 0 };
        self.seen = now;
        LOOK * self.looks >= limit.max(LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_stands_at_the_same_thing_and_does_not_wait_is_ended() {
        let progress = Progress::default();
        let mut stands = Stands::default();
        let limit = LOOK * 4;
        let mut look = || stands.look(progress.0.load(Ordering::Relaxed), limit);
        for _ in 0..20 {
            progress.begins();
            assert!(!look() && !look());
        }
        progress.waits();
        assert!((0..20).all(|_| !look()));
        progress.begins();
        assert!((0..4).all(|_| !look()) && look());
    }
}
