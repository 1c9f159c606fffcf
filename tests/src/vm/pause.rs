//! The time for which tests let a guest's work stand still.

use std::time::Duration;

/// `short`, or more than two minutes when `LONG_PAUSES` is set.
#[must_use]
pub fn pause(short: Duration) -> Duration {
    if std::env::var_os("LONG_PAUSES").is_some() { Duration::from_secs(150) } else { short }
}
