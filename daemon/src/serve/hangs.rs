//! Submissions that run too long, as the device process sees them: who has to make room sooner, and who is to be killed.
//!
//! Each worker watches its own submissions and ends itself; here is decided how long they may run, and that a worker which does not
//! watch any more is killed all the same. What a worker says of itself is believed: one that was taken over can hold the GPU for
//! longer. Knows no clock: time is passed in.

use crate::config::HangLimits;
use crate::shm::StatusPage;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// A submission that could run for so long and has not ended is held up by others, if there are others.
const WAITING_MIN: Duration = Duration::from_millis(250);
/// Time between two looks while something runs for long, and while nothing does.
const LOOK_BUSY: Duration = Duration::from_millis(50);
const LOOK_IDLE: Duration = Duration::from_secs(1);
/// Time that a worker may take beyond its limit to end itself.
const SLACK: Duration = Duration::from_secs(1);

/// The workers' pages.
#[derive(Debug)]
pub struct Hangs {
    limits: HangLimits,
    workers: FxHashMap<ContextId, Watched>,
    looked: Instant,
    next: Instant,
}

#[derive(Debug)]
struct Watched {
    page: StatusPage,
    limit: Duration,
    looks: u32,
    /// For how long it has not looked although something runs.
    silent: Duration,
}

impl Hangs {
    /// No workers.
    pub fn new(limits: HangLimits, now: Instant) -> Self {
        Self { limits, workers: FxHashMap::default(), looked: now, next: now }
    }

    /// A worker is about to be told of its page.
    pub fn begins(&mut self, ctx_id: ContextId, page: StatusPage) {
        let limit = self.limits.max_submit_time;
        page.set_limit(limit);
        self.workers.insert(ctx_id, Watched { page, limit, looks: 0, silent: Duration::ZERO });
    }

    /// A worker is gone, or told to go. Answers what it shared.
    pub fn ends(&mut self, ctx_id: ContextId) -> Option<StatusPage> {
        self.workers.remove(&ctx_id).map(|watched| watched.page)
    }

    /// A worker is about to be killed. Answers why. The others may have waited for it, so their submissions count from now on.
    pub fn killed(&mut self, ctx_id: ContextId) -> String {
        let limit = self.workers.get(&ctx_id).map(|watched| watched.limit);
        let others = self.workers.iter().filter(|(other, _)| **other != ctx_id);
        others.for_each(|(_, watched)| watched.page.restart());
        match limit {
            Some(limit) if limit < self.limits.max_submit_time => {
                format!("a submission ran longer than max_submit_time_contended ({limit:?})")
            }
            _ => {
                format!("a submission ran longer than max_submit_time ({:?})", self.limits.max_submit_time)
            }
        }
    }

    /// When [`Self::look`] wants to be called.
    pub fn next_look(&self) -> Option<Instant> {
        (!self.workers.is_empty()).then_some(self.next)
    }

    /// Looks at all pages, if it is time to; answers whose workers are to be killed.
    pub fn look(&mut self, now: Instant) -> Vec<ContextId> {
        if now < self.next {
            return Vec::new();
        }
        // Who looks late was stopped, and so may have been the workers.
        let since = now.saturating_duration_since(std::mem::replace(&mut self.looked, now)).min(LOOK_IDLE);
        let longest = self.set_limits();
        let mut dead = Vec::new();
        for (ctx_id, watched) in &mut self.workers {
            let looks = watched.page.looks();
            let Some(running) = watched.page.running() else {
                watched.silent = Duration::ZERO;
                continue;
            };
            let silent = if looks == watched.looks { watched.silent + since } else { Duration::ZERO };
            (watched.looks, watched.silent) = (looks, silent);
            if running.max(silent) >= watched.limit + SLACK {
                dead.push(*ctx_id);
            }
        }
        let contended = self.limits.max_submit_time_contended;
        let pause = match longest {
            Some(longest) => contended.saturating_sub(longest).clamp(LOOK_BUSY, LOOK_IDLE),
            None => (contended / 2).clamp(LOOK_BUSY, LOOK_IDLE),
        };
        self.next = now + pause;
        dead
    }

    /// Gives the shorter limit to the context that runs longest while another waits, and to no other: who waits for it has not had
    /// the GPU. Answers for how long the longest has run.
    fn set_limits(&mut self) -> Option<Duration> {
        let running = self.workers.iter().filter_map(|(ctx_id, w)| Some((w.page.running()?, *ctx_id)));
        let mut running: Vec<_> = running.collect();
        running.sort_unstable_by_key(|(time, ctx_id)| (std::cmp::Reverse(*time), ctx_id.0));
        let waits = running.get(1).is_some_and(|(time, _)| *time >= WAITING_MIN);
        let (longest, first) = running.first().map(|(time, ctx_id)| (*time, *ctx_id)).unzip();
        for (ctx_id, watched) in &mut self.workers {
            let HangLimits { max_submit_time, max_submit_time_contended, .. } = self.limits;
            let contended = waits && Some(*ctx_id) == first;
            let limit = if contended { max_submit_time_contended } else { max_submit_time };
            if watched.limit != limit {
                watched.limit = limit;
                watched.page.set_limit(limit);
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

    /// Two workers' sides, and ours.
    struct World {
        hangs: Hangs,
        workers: Vec<StatusPage>,
        now: Instant,
    }

    fn world() -> World {
        let now = Instant::now();
        let (max_submit_time, max_submit_time_contended) = LIMITS;
        let limits = HangLimits { max_submit_time, max_submit_time_contended, ..HangLimits::default() };
        let mut hangs = Hangs::new(limits, now);
        let worker = |ctx_id| {
            let (page, file) = StatusPage::create().unwrap();
            hangs.begins(ContextId(ctx_id), page);
            StatusPage::open(&file).unwrap()
        };
        World { workers: (0..2).map(worker).collect(), hangs, now }
    }

    impl World {
        /// Time passes in which the workers whose number is named look at what they run.
        fn pass(&mut self, time: Duration, looking: &[(usize, Duration)]) -> Vec<ContextId> {
            let end = self.now + time;
            let mut dead = Vec::new();
            while self.now < end {
                self.now += LOOK_BUSY;
                for (worker, running) in looking {
                    self.workers[*worker].report(Some(*running));
                }
                dead.extend(self.hangs.look(self.now));
            }
            dead
        }

        fn limits(&self) -> (Duration, Duration) {
            (self.workers[0].limit(), self.workers[1].limit())
        }
    }

    #[test]
    fn only_the_longest_has_to_make_room_and_only_while_another_waits() {
        let mut world = world();
        assert_eq!(world.limits(), (LIMITS.0, LIMITS.0));
        world.pass(SECOND, &[(0, 5 * SECOND)]);
        assert_eq!(world.limits(), (LIMITS.0, LIMITS.0));
        world.pass(SECOND, &[(0, 6 * SECOND), (1, SECOND / 10)]);
        assert_eq!(world.limits(), (LIMITS.0, LIMITS.0), "one that is served at once does not wait");
        world.pass(SECOND, &[(0, 7 * SECOND), (1, SECOND)]);
        assert_eq!(world.limits(), (LIMITS.1, LIMITS.0));
        world.workers[1].report(None);
        world.pass(SECOND, &[(0, 8 * SECOND)]);
        assert_eq!(world.limits(), (LIMITS.0, LIMITS.0));
    }

    #[test]
    fn who_waited_for_one_that_is_killed_counts_anew() {
        let mut world = world();
        world.pass(SECOND, &[(0, 9 * SECOND), (1, 8 * SECOND)]);
        let why = world.hangs.killed(ContextId(0));
        assert!(why.contains("max_submit_time_contended (10s)"), "{why}");
        assert_eq!((world.workers[0].restarts(), world.workers[1].restarts()), (0, 1));
        assert!(world.hangs.ends(ContextId(0)).is_some());
        let why = world.hangs.killed(ContextId(1));
        assert!(why.contains("max_submit_time (30s)"), "{why}");
        assert!(world.hangs.ends(ContextId(1)).is_some());
        assert_eq!(world.hangs.next_look(), None);
    }

    #[test]
    fn a_worker_that_does_not_end_itself_or_does_not_look_any_more_is_killed() {
        let mut world = world();
        world.workers[0].report(Some(Duration::ZERO));
        world.workers[1].report(None);
        assert_eq!(world.pass(LIMITS.0, &[]), []);
        assert_eq!(world.pass(3 * SECOND, &[])[0], ContextId(0), "silent");
        world.hangs.ends(ContextId(0));
        assert_eq!(world.pass(60 * SECOND, &[]), [], "nothing runs");
        assert_eq!(world.pass(60 * SECOND, &[(1, 29 * SECOND)]), []);
        assert_eq!(world.pass(2 * SECOND, &[(1, 31 * SECOND)])[0], ContextId(1));
    }

    #[test]
    fn time_in_which_nobody_looked_is_not_held_against_workers() {
        let mut world = world();
        world.workers[0].report(Some(Duration::ZERO));
        world.pass(SECOND, &[]);
        world.now += 3600 * SECOND;
        assert_eq!(world.pass(SECOND, &[]), []);
    }
}
