//! The wait until a context is at rest: everything that was submitted has completed.

use super::saved::NotMovable;
use crate::execution::context::Context;
use crate::logical::timeline::Standing;
use std::time::{Duration, Instant};

/// Time between two looks at the queues.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The number of consecutive looks at which no queue could go on, after which the queues count as stuck. A queue may seem stuck for one look, if the
/// submission that it waits for completes on another queue between the looks at the two.
const LOOKS: u32 = 10;

/// Waits until all submitted work has completed. Meanwhile nothing is submitted but the work that a scheduler grants.
///
/// # Errors
///
/// The work has not completed in the time of `patience`, or cannot complete, as it waits for a semaphore that is not signalled yet.
pub(crate) fn drain(context: &Context, patience: Duration) -> Result<(), NotMovable> {
    let (start, mut stuck) = (Instant::now(), 0);
    loop {
        let queues = context.timelines.all();
        // Queues wait for each other.
        queues.iter().for_each(|queue| queue.refresh());
        let pending =
            queues.iter().map(|queue| queue.standing()).filter(|standing| *standing != Standing::Idle);
        let pending: Vec<_> = pending.collect();
        if pending.is_empty() {
            return Ok(());
        }
        stuck = if pending.contains(&Standing::Going) { 0 } else { stuck + 1 };
        if stuck >= LOOKS {
            return Err(NotMovable::for_now("a submission waits for a semaphore that is not signalled yet"));
        }
        if start.elapsed() > patience {
            return Err(NotMovable::for_now("a submission does not end"));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
