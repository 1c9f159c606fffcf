//! The thread that tells drivers that this worker is alive, however long a ring's thread is busy inside the host's driver.
//!
//! This thread also wakes rings that have slept through a notification. It shares no lock with the execution of a ring: a ring takes the monitor's
//! own lock only when the ring comes or goes.

use super::ring::Ring;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The monitor of one context; its thread starts with the first ring that wants one and ends with this value.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rings: Vec<(Arc<Ring>, Duration)>,
    running: bool,
    ended: bool,
}

impl Monitor {
    /// Reports this ring alive at once, and then at least every `period`, because its driver tolerates no longer gap.
    pub(super) fn watch(&self, ring: Arc<Ring>, period: Duration) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if !state.running {
            let shared = Arc::clone(&self.shared);
            std::thread::Builder::new().name("monitor".into()).spawn(move || shared.run())?;
            state.running = true;
        }
        ring.set_alive();
        ring.is_looked_after();
        state.rings.push((ring, (period / 3).clamp(PERIOD_MIN, PERIOD_MAX)));
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Forgets a ring that is being destroyed; after the return the monitor does not touch its memory.
    pub(super) fn forget(&self, ring: &Arc<Ring>) {
        self.shared.state.lock().rings.retain(|(watched, _)| !Arc::ptr_eq(watched, ring));
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            for (ring, _) in &state.rings {
                ring.set_alive();
                ring.look_after();
            }
            match state.rings.iter().map(|(_, period)| *period).min() {
                Some(period) => {
                    let reported = Instant::now();
                    self.changed.wait_for(&mut state, period);
                    warn_if_late(reported.elapsed(), period);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }
}

/// A thread that sleeps for so much longer than planned got no processor.
const LATE_MIN: Duration = Duration::from_secs(1);

/// Warns of a late report. Mesa ends a program that sees no report for 3.5 s, without a reason, so the operator has to learn it from this process.
fn warn_if_late(slept: Duration, period: Duration) {
    if let Some(late) = slept.checked_sub(period).filter(|late| *late >= LATE_MIN) {
        let late = late.as_secs_f32();
        log::warn!(
            "the worker got no processor for {late:.1} s: the host is overloaded, and Mesa aborts programs whose worker is silent for 3.5 s"
        );
    }
}

/// Bounds on the time between two reports, for any request of a driver.
const PERIOD_MIN: Duration = Duration::from_millis(10);
const PERIOD_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::venus::generated::RingStatusFlagsMESA;
    use protocol::venus::ring::RingLayout;
    use shm::{Word, testing::private};
    use std::sync::atomic::Ordering::SeqCst;

    fn ring() -> (Arc<Ring>, Word) {
        let layout = RingLayout { head: 0, tail: 64, status: 128, buffer: 192..256, extra: 256..260 };
        let pages = private(4096);
        let status = pages.word(128).unwrap();
        (Arc::new(Ring::new(pages, layout, Duration::ZERO).unwrap()), status)
    }

    fn becomes_alive(status: &Word) -> bool {
        becomes_alive_within(Duration::from_secs(300), status)
    }

    fn becomes_alive_within(limit: Duration, status: &Word) -> bool {
        status.clear_bits(RingStatusFlagsMESA::ALIVE.0, SeqCst);
        let start = Instant::now();
        while start.elapsed() < limit {
            if status.load(SeqCst) & RingStatusFlagsMESA::ALIVE.0 != 0 {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn watched_rings_stay_alive_at_the_shortest_period_asked_for_and_others_do_not() {
        let monitor = Monitor::default();
        let ((slow, slow_status), (fast, fast_status)) = (ring(), ring());
        monitor.watch(Arc::clone(&slow), Duration::from_secs(3600)).unwrap();
        monitor.watch(Arc::clone(&fast), Duration::ZERO).unwrap();
        for _ in 0..5 {
            assert!(becomes_alive(&slow_status));
            assert!(becomes_alive(&fast_status));
        }
        monitor.forget(&slow);
        assert!(!becomes_alive_within(Duration::from_millis(500), &slow_status));
        assert!(becomes_alive(&fast_status));
        drop(monitor);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!becomes_alive_within(Duration::from_millis(500), &fast_status));
    }
}
