//! Short busy waiting for an event that is about to happen anyway: how to wait, and whether at all.

use super::tunables;
use super::tunables::SpinTunables;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The way in which a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spun {
    /// The awaited condition became true.
    Seen,
    /// The condition did not become true within the limit.
    NotYet,
    /// Other threads needed the processor.
    Crowded,
}

/// Watches `done` for a moment and returns whether it became true.
pub fn until(done: impl Fn() -> bool) -> bool {
    within(tunables().spin.moment, done) == Spun::Seen
}

/// Watches `done` for no longer than `limit`.
///
/// A sleep and a wake-up cost more than a moment, but a core that other threads need costs more still. At most a quarter of the cores spin at once,
/// one of two or three, and none if there is only one. A thread stops when it finds that another thread waited for the core.
pub fn within(limit: Duration, done: impl Fn() -> bool) -> Spun {
    if done() {
        return Spun::Seen;
    }
    let SpinTunables { threads, offer_every, taken, .. } = tunables().spin;
    let Some(_spinner) = Spinner::among(threads) else { return Spun::Crowded };
    let start = Instant::now();
    let mut offered = start;
    loop {
        for _ in 0..32 {
            std::hint::spin_loop();
        }
        if done() {
            return Spun::Seen;
        }
        let now = Instant::now();
        if now.duration_since(start) >= limit {
            return Spun::NotYet;
        }
        if now.duration_since(offered) >= offer_every {
            std::thread::yield_now();
            offered = Instant::now();
            if offered.duration_since(now) >= taken {
                return if done() { Spun::Seen } else { Spun::Crowded };
            }
        }
    }
}

/// A thread that is counted as spinning.
struct Spinner;

impl Spinner {
    fn among(most: usize) -> Option<Self> {
        // Made before the check for room, so that its drop uncounts the thread in any case.
        let spinner = Self;
        (SPINNING.fetch_add(1, Relaxed) < most).then_some(spinner)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        SPINNING.fetch_sub(1, Relaxed);
    }
}

static SPINNING: AtomicUsize = AtomicUsize::new(0);
