//! Short busy waiting for what is about to happen anyway: how to wait, for how long, and whether at all. Knows nothing of what is waited
//! for.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Returns whether processors are few, so that programs and a software driver need them.
pub fn are_few() -> bool {
    few(processors())
}

/// Returns whether so many processors are few.
fn few(processors: usize) -> bool {
    processors < 4
}

/// The number of processors that this process may use, as it was when it was first asked for.
pub fn processors() -> usize {
    *PROCESSORS
}

/// Counts the processors that this process may use. What limits a control group sets is in files, so a process that will see none has to
/// count before.
pub fn count_processors() {
    LazyLock::force(&PROCESSORS);
}

/// The way in which a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spun {
    /// The awaited condition became true.
    Seen,
    /// The condition did not become true in the time that was given.
    NotYet,
    /// Other threads needed the processor.
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

/// The time that waits of one kind have taken, from which the time of the next is expected.
///
/// A thread that is put to sleep is woken some microseconds after the event, and the later the longer it slept. So a thread that waits for
/// what happens soon does not sleep, and one that waits for what takes longer sleeps for most of the time that it took last, and then
/// looks.
#[derive(Debug)]
pub struct Habit {
    /// Waits that are longer are slept through.
    longest: Duration,
    /// The time that the last wait took, if that was not too long.
    expected: Option<Duration>,
}

/// A plan for one wait: both times are zero if it is just to be slept through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The thread sleeps for so long at first, unless the event happens.
    pub sleep: Duration,
    /// The thread then looks for so long.
    pub look: Duration,
}

impl Habit {
    /// A habit of which nothing is known yet. What takes longer than `longest` is not looked for, and nothing is where processors are few.
    pub fn new(longest: Duration) -> Self {
        Self::among(processors(), longest)
    }

    /// A habit like that of [`Self::new`], on a machine with so many processors.
    pub fn among(processors: usize, longest: Duration) -> Self {
        Self { longest: if few(processors) { Duration::ZERO } else { longest }, expected: None }
    }

    /// Returns how to spend the next wait.
    pub fn plan(&self) -> Plan {
        let Some(expected) = self.expected else { return Plan::default() };
        match expected <= WORTH_SLEEPING {
            true => Plan { sleep: Duration::ZERO, look: 2 * expected + MARGIN },
            false => Plan { sleep: expected * 3 / 4, look: expected / 2 + MARGIN },
        }
    }

    /// Notes that the wait took so long until the event happened.
    pub fn took(&mut self, waited: Duration) {
        self.expected = (waited <= self.longest).then_some(waited);
    }

    /// Waits until `done`. `sleep` sleeps until then, or for no longer than it is told; when it returns without having been told, it is done.
    pub fn wait(&mut self, done: impl Fn() -> bool, mut sleep: impl FnMut(Option<Duration>)) {
        let (begin, plan) = (Instant::now(), self.plan());
        if !plan.sleep.is_zero() {
            sleep(Some(plan.sleep));
        }
        if plan.look.is_zero() || within(plan.look, &done) != Spun::Seen {
            sleep(None);
        }
        self.took(begin.elapsed());
    }
}

/// The longest time that a wait may spin: about the cost of being put to sleep and woken on a busy machine.
const MOMENT: Duration = Duration::from_micros(40);
/// The interval at which a spinning thread offers the processor to others.
const OFFER_EVERY: Duration = Duration::from_micros(20);
/// The time after which a thread that offered the processor has seen another use it.
const TAKEN: Duration = Duration::from_micros(10);

/// Waits that are expected to take no longer are not worth a sleep at first: timers are late by up to 50 us, and waking takes its time.
const WORTH_SLEEPING: Duration = Duration::from_micros(300);
/// The margin by which an event may in any case take longer than expected.
const MARGIN: Duration = Duration::from_micros(10);

/// A thread that spins, which is counted.
struct Spinner;

impl Spinner {
    fn new() -> Option<Self> {
        // Made before it is known whether there is room, so that it is uncounted in any case.
        let spinner = Self;
        (SPINNING.fetch_add(1, Relaxed) < (*PROCESSORS + 2) / 4).then_some(spinner)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        SPINNING.fetch_sub(1, Relaxed);
    }
}

static SPINNING: AtomicUsize = AtomicUsize::new(0);

static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, |processors| processors.get()));

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn habit(expected: Option<Duration>) -> Habit {
        Habit { expected, ..Habit::among(4, 1000 * US) }
    }

    #[test]
    fn nothing_is_looked_for_where_processors_are_few() {
        for (processors, looks) in [(1, false), (3, false), (4, true), (64, true)] {
            let mut habit = Habit::among(processors, 1000 * US);
            habit.took(5 * US);
            assert_eq!(!habit.plan().look.is_zero(), looks, "{processors} processors");
        }
    }

    #[test]
    fn what_took_short_is_looked_for_and_what_took_long_is_slept_through() {
        let mut habit = habit(None);
        assert_eq!(habit.plan(), Plan::default());
        habit.took(5 * US);
        assert!(habit.plan().sleep.is_zero() && habit.plan().look > 5 * US);
        habit.took(1000 * US);
        let Plan { sleep, look } = habit.plan();
        assert!(sleep > 500 * US && sleep < 1000 * US && sleep + look > 1000 * US);
        habit.took(1001 * US);
        assert_eq!(habit.plan(), Plan::default());
    }

    #[test]
    fn a_wait_ends_when_it_is_done_and_not_before() {
        for (expected, naps) in [(None, 0), (Some(10 * US), 0), (Some(500 * US), 1)] {
            let (mut habit, mut slept) = (habit(expected), Vec::new());
            habit.wait(|| false, |limit| slept.push(limit));
            assert_eq!(slept.len(), naps + 1);
            assert!(slept.pop() == Some(None) && slept.iter().all(Option::is_some));
        }
        let mut slept = Vec::new();
        habit(Some(500 * US)).wait(|| true, |limit| slept.push(limit));
        assert!(!slept.contains(&None), "nobody sleeps without an end for what is done");
    }
}
