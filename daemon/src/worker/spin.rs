//! Short busy waiting, for what is about to happen anyway. Knows nothing of rings.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Watches `done` for a moment and answers whether it became true.
///
/// Sleeping and being woken costs more than this moment, but a core that is needed elsewhere costs more still: at most a quarter
/// of the cores spins at once, one where there are two or three, and none where there is only one.
pub fn until(done: impl Fn() -> bool) -> bool {
    if done() {
        return true;
    }
    if SPINNING.fetch_add(1, Relaxed) >= *SPINNERS_MAX {
        SPINNING.fetch_sub(1, Relaxed);
        return false;
    }
    let start = Instant::now();
    let mut seen = false;
    while !seen && start.elapsed() < MOMENT {
        for _ in 0..32 {
            std::hint::spin_loop();
        }
        seen = done();
    }
    SPINNING.fetch_sub(1, Relaxed);
    seen
}

/// How long a wait may spin: about the cost of being put to sleep and woken on a busy machine.
const MOMENT: Duration = Duration::from_micros(40);

static SPINNING: AtomicUsize = AtomicUsize::new(0);

static SPINNERS_MAX: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(0, |cores| (cores.get() + 2) / 4));
