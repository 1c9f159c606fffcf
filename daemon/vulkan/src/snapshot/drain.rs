//! The wait until a context is at rest: everything that was submitted has completed.

use super::saved::NotMovable;
use crate::execution::context::Context;
use crate::logical::timeline::Standing;
use std::time::{Duration, Instant};

/// Time between two looks at the queues.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The number of looks in a row at which nothing could go on, after which nothing can: what one queue waits for may have completed on another
/// between looks at the two.
const LOOKS: u32 = 10;

/// Waits until everything has completed that was submitted. Nothing is submitted meanwhile, but what a scheduler grants.
///
/// # Errors
///
/// It has not completed in the time of `patience`, or cannot complete, as it waits for what is not signalled yet.
pub(crate) fn drain(context: &Context, patience: Duration) -> Result<(), NotMovable> {
    let (start, mut stuck) = (Instant::now(), 0);
    loop {
        let queues = context.timelines.all();
        // They wait for each other.
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
