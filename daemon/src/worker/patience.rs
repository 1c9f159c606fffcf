//! The bounds on the waits of a worker for other processes, and for threads of its own that have work to finish.

use std::time::Duration;

/// Returns a bound of so many seconds on such a wait. Tests get more time: they play the other side on a machine that may stand still for a while.
pub(super) const fn patience(seconds: u64) -> Duration {
    Duration::from_secs(if cfg!(test) { 600 } else { seconds })
}
