//! Calls in which a driver compiles shaders, and how long they have taken: without this measure, nothing would end such a call.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// The longest step of time that one look adds: a process that was stopped meanwhile has not compiled.
const STEP_MAX: Duration = Duration::from_millis(200);

/// The calls of a context that are under way.
#[derive(Debug)]
pub struct Compilations {
    /// The longest that a call may take.
    limit: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Calls by number, and the time that each has taken.
    running: Vec<(u64, Duration)>,
    looked: Option<Instant>,
}

/// A call that is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Compilation<'c> {
    all: &'c Compilations,
    number: u64,
}

impl Compilations {
    /// No calls yet; each may take as long as `limit`.
    pub fn new(limit: Duration) -> Self {
        Self { limit, state: Mutex::default() }
    }

    /// Begins a call.
    pub(crate) fn begin(&self) -> Compilation<'_> {
        let mut state = self.state.lock();
        state.next += 1;
        let number = state.next;
        state.running.push((number, Duration::ZERO));
        Compilation { all: self, number }
    }

    /// Looks at the calls: whether any is under way, and the limit if one has reached it.
    pub fn look(&self, now: Instant) -> (bool, Option<Duration>) {
        let mut state = self.state.lock();
        let before = state.looked.replace(now).unwrap_or(now);
        let step = now.saturating_duration_since(before).min(STEP_MAX);
        state.running.iter_mut().for_each(|(_, taken)| *taken += step);
        let longest = state.running.iter().map(|(_, taken)| *taken).max();
        (longest.is_some(), longest.filter(|longest| *longest >= self.limit).map(|_| self.limit))
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        self.all.state.lock().running.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_reaches_the_limit_by_its_own_time() {
        let limit = Duration::from_millis(500);
        let all = Compilations::new(limit);
        let mut now = Instant::now();
        let mut after = |milliseconds| {
            now += Duration::from_millis(milliseconds);
            now
        };
        assert_eq!(all.look(after(0)), (false, None));
        let first = all.begin();
        assert_eq!(all.look(after(150)), (true, None));
        // Neither the time of another call nor more than one step between two looks counts for it.
        let second = all.begin();
        assert_eq!(all.look(after(60_000)), (true, None));
        drop(first);
        assert_eq!(all.look(after(200)), (true, None));
        assert_eq!(all.look(after(150)), (true, Some(limit)));
        drop(second);
        assert_eq!(all.look(after(150)), (false, None));
    }
}
