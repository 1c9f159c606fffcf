//! Computes when a process that has ended is started again: soon if it had lived for a while, after longer and longer pauses if it dies at once.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The pause before the first new start.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);
/// A process that lived this long is started again after the first pause.
const A_LIFE: Duration = Duration::from_secs(60);

/// Pauses between starts.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    /// The pause before the next start of a process that has lived for `life`.
    pub(super) fn pause_after(&mut self, life: Duration) -> Duration {
        let pause = match self.last {
            Some(last) if life < A_LIFE => (last * 2).min(LONGEST),
            _ => FIRST,
        };
        self.last = Some(pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_minute_and_begin_again_after_a_life() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..9).map(|_| backoff.pause_after(Duration::ZERO).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(backoff.pause_after(A_LIFE), FIRST);
        assert_eq!(backoff.pause_after(FIRST), 2 * FIRST);
    }
}
