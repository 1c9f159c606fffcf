//! Short busy waiting, for what is about to happen anyway. Knows nothing of rings, fences or drivers.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spun {
    /// It happened.
    Seen,
    /// It did not, in the time that was given.
    NotYet,
    /// Others needed the processor.
    Crowded,
}

/// Watches `done` for a moment and answers whether it became true.
pub fn until(done: impl Fn() -> bool) -> bool {
    within(MOMENT, done) == Spun::Seen
}

/// Watches `done` for no longer than `limit`.
///
/// Sleeping and being woken costs more than a moment, but a core that is needed elsewhere costs more still: at most a quarter
/// of the cores spins at once, one where there are two or three, and none where there is only one; and who finds that another was
/// waiting for the core stops.
pub fn within(limit: Duration, done: impl Fn() -> bool) -> Spun {
    if done() {
        return Spun::Seen;
    }
    let Some(_spinner) = Spinner::new() else { return Spun::Crowded };
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
        if now.duration_since(offered) >= OFFER_EVERY {
            std::thread::yield_now();
            offered = Instant::now();
            if offered.duration_since(now) >= TAKEN {
                return if done() { Spun::Seen } else { Spun::Crowded };
            }
        }
    }
}

/// Whether processors are few: programs and a software driver need them.
pub fn are_few() -> bool {
    // Asked once: the answer is in files of the kernel's.
    static FEW: LazyLock<bool> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, |processors| processors.get()) < 4);
    *FEW
}

/// How long a wait may spin: about the cost of being put to sleep and woken on a busy machine.
const MOMENT: Duration = Duration::from_micros(40);
/// How often the processor is offered to others.
const OFFER_EVERY: Duration = Duration::from_micros(20);
/// Who gets it back only after this time has seen another use it.
const TAKEN: Duration = Duration::from_micros(10);

/// One of those that may spin.
struct Spinner;

impl Spinner {
    fn new() -> Option<Self> {
        // Made before it is known whether there is room, so that it is uncounted in any case.
        let spinner = Self;
        (SPINNING.fetch_add(1, Relaxed) < *SPINNERS_MAX).then_some(spinner)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        SPINNING.fetch_sub(1, Relaxed);
    }
}

static SPINNING: AtomicUsize = AtomicUsize::new(0);

static SPINNERS_MAX: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(0, |cores| (cores.get() + 2) / 4));
