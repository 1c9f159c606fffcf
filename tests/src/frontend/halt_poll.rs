//! The halt polling of a virtual machine's idle processor: before the processor sleeps, it polls for new work for a moment.
//!
//! KVM polls for 200 us at most, and for as long as polling has paid off. Without polling, the frontend's threads, which play such processors, would
//! wake later than a machine's processors.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The halt polling of one processor.
#[derive(Debug, Default)]
pub struct HaltPoll {
    limit: Duration,
}

impl HaltPoll {
    /// Waits until `is_there`: polls for a moment, and calls `sleep` if polling was not enough.
    ///
    /// # Errors
    /// The error is that of `sleep`.
    pub fn wait<E>(
        &mut self,
        mut is_there: impl FnMut() -> bool,
        sleep: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let begin = Instant::now();
        while begin.elapsed() < self.limit {
            if is_there() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        sleep()?;
        if *HAS_PROCESSORS {
            self.waited(begin.elapsed());
        }
        Ok(())
    }

    /// Adapts the time for which the next wait polls: a short sleep makes it longer, and after a long sleep there is no polling.
    fn waited(&mut self, time: Duration) {
        self.limit = match time {
            time if time > LIMIT_MAX => Duration::ZERO,
            time if time > self.limit => (self.limit * 2).clamp(LIMIT_MIN, LIMIT_MAX),
            _ => self.limit,
        };
    }
}

/// KVM's limits on x86: `halt_poll_ns`, and `halt_poll_ns_grow_start`.
const LIMIT_MAX: Duration = Duration::from_micros(200);
const LIMIT_MIN: Duration = Duration::from_micros(10);

/// True if this machine has enough processors for threads that poll.
static HAS_PROCESSORS: LazyLock<bool> =
    LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|processors| processors.get() >= 8));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_make_it_look_longer_and_a_long_one_makes_it_stop() {
        let mut halt_poll = HaltPoll::default();
        for _ in 0..10 {
            halt_poll.waited(Duration::from_micros(150));
        }
        assert!(halt_poll.limit > Duration::from_micros(150) && halt_poll.limit <= LIMIT_MAX);
        halt_poll.waited(Duration::from_millis(1));
        assert!(halt_poll.limit.is_zero());
    }

    #[test]
    fn it_sleeps_if_nothing_comes_and_only_then() {
        let mut halt_poll = HaltPoll { limit: Duration::from_secs(1000) };
        assert_eq!(halt_poll.wait(|| true, || Err("it sleeps")), Ok(()));
        let mut halt_poll = HaltPoll { limit: LIMIT_MIN };
        assert_eq!(halt_poll.wait(|| false, || Err("it sleeps")), Err("it sleeps"));
    }
}
