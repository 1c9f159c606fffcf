//! This file follows submissions that run too long: it decides which contexts have to make room sooner, and which are to be killed.
//!
//! Each worker watches its own submissions and ends itself. This file decides how long submissions may run, and has a worker killed that does not
//! watch any more. It believes a worker's report about itself: a guest that has taken a worker over can hold the GPU for longer. This file knows no
//! clock: time is passed in.
//!
//! Contexts that run at the same time slow each other down. So while others wait, a submission is charged its share of the time that
//! passes, as if the running contexts shared the GPU evenly. A submission never runs longer than it may alone.

pub(super) mod progress;
pub(super) mod strikes;

use crate::blame::{self, goes_first, in_the_way};
use config::HangLimits;
use outside::Span;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use shm::StatusPage;
use std::time::{Duration, Instant};

/// Time between two looks while a submission runs for long, and while none does.
const LOOK_BUSY: Duration = Duration::from_millis(50);
const LOOK_IDLE: Duration = Duration::from_secs(1);
/// Time that a worker may take beyond its limit to end itself.
const SLACK: Duration = Duration::from_secs(1);

/// Advice for a program that is not to be ended.
const REMEDY: &str = ": raise that option, or have the program submit less at once";

type Running = blame::Running<ContextId>;

/// A limit that a submission has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// [`HangLimits::max_submit_time`].
    Alone,
    /// [`HangLimits::max_submit_time_contended`].
    Contended,
}

/// The workers' pages.
#[derive(Debug)]
pub(super) struct Hangs {
    limits: HangLimits,
    workers: FxHashMap<ContextId, Watched>,
    looked: Instant,
    next: Instant,
}

#[derive(Debug)]
struct Watched {
    page: StatusPage,
    /// The time for which the worker's submission may run, as the worker was told.
    limit: Duration,
    /// The time for which the worker's submission has run; `charged` is the part that was charged to it.
    ran: Duration,
    charged: Duration,
    looks: u32,
    /// The time for which the worker has not looked although a submission runs.
    silent: Duration,
}

impl Hangs {
    /// Makes a table without workers.
    pub(super) fn new(limits: HangLimits, now: Instant) -> Self {
        Self { limits, workers: FxHashMap::default(), looked: now, next: now }
    }

    /// Returns the time for which a submission may run if no other waits for it.
    pub(super) fn limit(&self) -> Duration {
        self.limits.max_submit_time
    }

    /// A worker is about to be told of its page.
    pub(super) fn begins(&mut self, ctx_id: ContextId, page: StatusPage) {
        let limit = self.limit();
        page.set_limit(limit);
        let (ran, charged, silent) = Default::default();
        self.workers.insert(ctx_id, Watched { page, limit, ran, charged, looks: 0, silent });
    }

    /// A worker's successor replaces it, and has submitted nothing yet. The record of the context stays.
    pub(super) fn succeeds(&mut self, ctx_id: ContextId, page: StatusPage) {
        let usual = self.workers.get(&ctx_id).and_then(|watched| watched.page.usual());
        page.tell_usual(usual);
        self.begins(ctx_id, page);
    }

    /// A worker is gone, or was told to end. Returns its page.
    pub(super) fn ends(&mut self, ctx_id: ContextId) -> Option<StatusPage> {
        self.workers.remove(&ctx_id).map(|watched| watched.page)
    }

    /// Returns the contexts that have a worker, each with the wakings of its rings (`shm::Activity`), or none if it does something.
    pub(super) fn activity(&self) -> impl Iterator<Item = (ContextId, Option<u32>)> {
        self.workers.iter().map(|(ctx_id, Watched { page, .. })| {
            let (awake, wakings) = page.activity().look();
            (*ctx_id, (awake == 0 && page.running().is_none()).then_some(wakings))
        })
    }

    /// Returns the page of a context's worker.
    pub(super) fn page(&self, ctx_id: ContextId) -> Option<&StatusPage> {
        self.workers.get(&ctx_id).map(|watched| &watched.page)
    }

    /// Returns which limit a worker has reached whose submission was allowed to run for this time.
    pub(super) fn reached(&self, limit: Duration) -> Reached {
        if limit < self.limits.max_submit_time { Reached::Contended } else { Reached::Alone }
    }

    /// A worker is about to be killed, as it has reached a limit. Returns the reason, in words. The other workers may have waited for it, so the
    /// time of their submissions counts from now on.
    pub(super) fn killed(&mut self, ctx_id: ContextId, reached: Reached) -> String {
        let others = self.workers.iter().filter(|(other, _)| **other != ctx_id);
        others.for_each(|(_, watched)| watched.page.restart());
        let HangLimits { max_submit_time, max_submit_time_contended, .. } = self.limits;
        match reached {
            Reached::Contended => format!(
                "a submission ran longer than max-submit-time-contended ({}) while another context waited{REMEDY}",
                Span(max_submit_time_contended)
            ),
            Reached::Alone => {
                format!("a submission ran longer than max-submit-time ({}){REMEDY}", Span(max_submit_time))
            }
        }
    }

    /// Returns when [`Self::look`] wants to be called.
    pub(super) fn next_look(&self) -> Option<Instant> {
        (!self.workers.is_empty()).then_some(self.next)
    }

    /// Looks at all pages, if it is time to. Returns the contexts whose workers are to be killed, and the limit that each reached.
    pub(super) fn look(&mut self, now: Instant) -> Vec<(ContextId, Reached)> {
        if now < self.next {
            return Vec::new();
        }
        // A device process that looks late was stopped, and the workers may have been stopped too.
        let since = now.saturating_duration_since(std::mem::replace(&mut self.looked, now)).min(LOOK_IDLE);
        let longest = self.charge_and_limit();
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
                dead.push((*ctx_id, watched.limit));
            }
        }
        let contended = self.limits.max_submit_time_contended;
        let pause = match longest {
            Some(longest) => contended.saturating_sub(longest).clamp(LOOK_BUSY, LOOK_IDLE),
            None => (contended / 2).clamp(LOOK_BUSY, LOOK_IDLE),
        };
        self.next = now + pause;
        dead.into_iter().map(|(ctx_id, limit)| (ctx_id, self.reached(limit))).collect()
    }

    /// Charges all running submissions, and tells each worker its limit. Returns the charge of the submission that has to end first.
    fn charge_and_limit(&mut self) -> Option<Duration> {
        let running: Vec<_> =
            self.workers.iter_mut().filter_map(|(ctx_id, watched)| watched.running(*ctx_id)).collect();
        let sharing = Sharing::of(&running);
        for one in &running {
            self.workers.get_mut(&one.id)?.charge(one.ran, sharing.sharers);
        }
        for (ctx_id, watched) in &mut self.workers {
            let one = running.iter().find(|one| one.id == *ctx_id);
            let limit = one
                .map_or(self.limits.max_submit_time, |one| sharing.limit(one, watched.charged, &self.limits));
            watched.tell_limit(limit);
        }
        self.workers.get(&sharing.first?.id).map(|watched| watched.charged)
    }
}

/// The assumption of how the running submissions share the GPU.
#[derive(Debug)]
struct Sharing {
    /// The submission that blocks another, and has to make room.
    in_the_way: Option<Running>,
    /// The submission that has to end before the others if all run for long: the one that blocks another, if there is one.
    first: Option<Running>,
    /// The number of submissions that have had a part of the GPU.
    sharers: u32,
}

impl Sharing {
    fn of(running: &[Running]) -> Self {
        let in_the_way = in_the_way(running);
        let parts = u32::try_from(running.len()).unwrap_or(u32::MAX);
        let is_kept_out =
            |one: &&Running| in_the_way.is_some_and(|first| first.holds_up(one)) && one.is_starved(parts);
        let kept_out = running.iter().filter(is_kept_out).count() as u32;
        let sharers = parts.saturating_sub(kept_out).max(1);
        Self { in_the_way, first: in_the_way.or_else(|| goes_first(running)), sharers }
    }

    /// Returns the time for which a submission with the charge `charged` may run. Only the submission that blocks another gets the shorter limit.
    /// Those that reach their limit at about the time of the first may take a little longer: otherwise they would be killed with it, or before.
    fn limit(&self, one: &Running, charged: Duration, limits: &HangLimits) -> Duration {
        let HangLimits { max_submit_time, max_submit_time_contended, .. } = *limits;
        let is = |other: Running| other.id == one.id;
        if self.in_the_way.is_some_and(is) {
            let left = max_submit_time_contended.saturating_sub(charged);
            return one.ran.saturating_add(left.saturating_mul(self.sharers)).min(max_submit_time);
        }
        match self.first.filter(|first| !is(*first) && first.is_abreast_of(one)) {
            Some(_) => max_submit_time.saturating_add(one.late()).saturating_add(SLACK),
            None => max_submit_time,
        }
    }
}

impl Watched {
    /// Returns the running submission, if there is one.
    fn running(&mut self, ctx_id: ContextId) -> Option<Running> {
        let running = self.page.running();
        let ran = running.unwrap_or_default();
        if ran < self.ran {
            (self.ran, self.charged) = Default::default();
        }
        let (usual, served) = (self.page.usual(), self.page.served());
        running.map(|ran| Running { id: ctx_id, ran, charged: self.charged, usual, served })
    }

    /// Charges for the time since the last look, which `sharers` contexts shared.
    fn charge(&mut self, ran: Duration, sharers: u32) {
        self.charged += ran.saturating_sub(self.ran) / sharers;
        self.ran = ran;
    }

    fn tell_limit(&mut self, limit: Duration) {
        if self.limit != limit {
            self.limit = limit;
            self.page.set_limit(limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);
    const LIMITS: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

    /// The pages of two workers, with the workers' side and the device process's.
    struct World {
        hangs: Hangs,
        workers: Vec<StatusPage>,
        now: Instant,
    }

    fn world() -> World {
        world_of(2)
    }

    fn world_of(workers: u32) -> World {
        let now = Instant::now();
        let (max_submit_time, max_submit_time_contended) = LIMITS;
        let limits = HangLimits { max_submit_time, max_submit_time_contended, ..HangLimits::default() };
        let mut hangs = Hangs::new(limits, now);
        let worker = |ctx_id| {
            let (page, file) = StatusPage::create().unwrap();
            hangs.begins(ContextId(ctx_id), page);
            StatusPage::open(&file).unwrap()
        };
        World { workers: (0..workers).map(worker).collect(), hangs, now }
    }

    impl World {
        /// Passes time in which the numbered workers report their running submissions.
        fn pass(&mut self, time: Duration, looking: &[(usize, Duration)]) -> Vec<ContextId> {
            let end = self.now + time;
            let mut dead = Vec::new();
            while self.now < end {
                self.now += LOOK_BUSY;
                for (worker, running) in looking {
                    self.workers[*worker].report(Some(*running));
                }
                dead.extend(self.hangs.look(self.now).into_iter().map(|(ctx_id, _)| ctx_id));
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
        // The first submission was charged 5 s alone, and half of 2 s.
        assert_eq!(world.limits(), (7 * SECOND + 2 * (LIMITS.1 - 6 * SECOND), LIMITS.0));
        world.workers[1].report(None);
        world.pass(SECOND, &[(0, 8 * SECOND)]);
        assert_eq!(world.limits(), (LIMITS.0, LIMITS.0));
    }

    #[test]
    fn equal_neighbours_have_as_much_time_as_alone_and_do_not_go_together() {
        for (workers, usual) in [(2, None), (2, Some(2 * MS)), (5, None), (5, Some(3 * SECOND))] {
            let mut world = world_of(workers);
            let all = 0..workers as usize;
            all.clone().for_each(|worker| world.workers[worker].tell_usual(usual));
            for ran in 0..=29 {
                let looking: Vec<_> = all.clone().map(|worker| (worker, ran * SECOND)).collect();
                assert_eq!(world.pass(SECOND, &looking), []);
                assert!(
                    all.clone().all(|worker| world.workers[worker].limit() >= LIMITS.0),
                    "{usual:?} after {ran} s"
                );
            }
            let (first, second) = world.limits();
            assert!(first == LIMITS.0 && second > LIMITS.0 + SLACK, "{second:?}");
        }
    }

    /// Two programs with short submissions before a long one each, as inference has.
    #[test]
    fn who_computes_beside_one_that_takes_long_does_not_shorten_its_time() {
        let mut world = world();
        world.workers.iter().for_each(|worker| worker.tell_usual(Some(2 * MS)));
        world.workers[1].tell_served(Some(Duration::ZERO));
        world.pass(SECOND, &[(0, 5 * SECOND), (1, 2 * MS)]);
        for ran in 1..=17 {
            world.workers[1].tell_served(Some(ran * SECOND));
            assert_eq!(world.pass(SECOND, &[(0, (5 + ran) * SECOND), (1, ran * SECOND)]), []);
            assert_eq!(world.limits(), (LIMITS.0, LIMITS.0), "after {ran} s");
        }
    }

    #[test]
    fn who_waited_for_one_that_is_killed_counts_anew() {
        let mut world = world();
        world.pass(SECOND, &[(0, 9 * SECOND), (1, 8 * SECOND)]);
        let limit = world.workers[0].limit();
        let why = world.hangs.killed(ContextId(0), world.hangs.reached(limit));
        assert!(why.contains("max-submit-time-contended (10 s)"), "{why}");
        assert_eq!((world.workers[0].restarts(), world.workers[1].restarts()), (0, 1));
        assert!(world.hangs.ends(ContextId(0)).is_some());
        let why = world.hangs.killed(ContextId(1), world.hangs.reached(LIMITS.0));
        assert!(why.contains("max-submit-time (30 s)"), "{why}");
        assert!(world.hangs.ends(ContextId(1)).is_some());
        assert_eq!(world.hangs.next_look(), None);
    }

    /// Kernels of 2 ms that come to a halt when an endless one gets the GPU, as was seen on a GPU that does not interrupt one for the other.
    #[test]
    fn who_was_served_until_an_endless_one_came_is_left_alone_whoever_began_first() {
        for (short, lead) in [(0, 1), (1, 1), (0, 0), (1, 0)] {
            let mut world = world();
            let endless = 1 - short;
            world.workers[short].tell_usual(Some(2 * MS));
            world.pass(SECOND, &[(short, 2 * MS)]);
            let (mut ran, mut runs) = (Duration::ZERO, [Duration::ZERO; 2]);
            while world.workers[endless].limit() > runs[1] {
                ran += 50 * MS;
                // Either of the two may have been submitted first.
                runs = [ran + lead * 40 * MS, ran + (1 - lead) * 40 * MS];
                world.pass(50 * MS, &[(short, runs[0]), (endless, runs[1])]);
                let [theirs, ours] = [short, endless].map(|worker| world.workers[worker].limit());
                assert!(theirs >= LIMITS.0 && theirs > runs[0], "theirs is {theirs:?} after {ran:?}");
                assert!(ours <= LIMITS.0, "{ours:?}");
                assert!(ran <= LIMITS.1 + SECOND, "it goes on for {ran:?}");
            }
            // All of the time was charged to the endless submission alone.
            assert!(ran >= LIMITS.1 - SECOND, "ended after {ran:?}");
            let limit = world.workers[endless].limit();
            let why = world.hangs.killed(ContextId(endless as u32), world.hangs.reached(limit));
            assert!(why.contains("max-submit-time-contended (10 s)"), "{why}");
            assert_eq!(world.workers[short].restarts(), 1);
        }
    }

    /// Without a limit for the contexts that wait, the context that blocks them still ends first.
    #[test]
    fn who_waits_is_not_gone_before_the_one_in_its_way() {
        let mut world = world();
        world.workers[0].tell_usual(Some(100 * MS));
        for ran in 1..=29 {
            world.pass(SECOND, &[(0, ran * SECOND + 90 * MS), (1, ran * SECOND)]);
            let (theirs, ours) = world.limits();
            assert!(theirs - 90 * MS > ours, "{theirs:?} and {ours:?} after {ran} s");
        }
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
    fn a_successor_begins_with_nothing_but_what_is_known_of_its_context() {
        let mut world = world();
        world.workers[0].tell_usual(Some(2 * MS));
        world.workers[0].report(Some(Duration::ZERO));
        assert_eq!(world.pass(LIMITS.0 - SECOND, &[]), []);
        let (page, file) = StatusPage::create().unwrap();
        world.hangs.succeeds(ContextId(0), page);
        world.workers[0] = StatusPage::open(&file).unwrap();
        assert_eq!((world.workers[0].usual(), world.limits().0), (Some(2 * MS), LIMITS.0));
        assert_eq!(world.pass(60 * SECOND, &[]), [], "it rests for long");
        world.workers[0].report(Some(Duration::ZERO));
        assert_eq!(world.pass(LIMITS.0 - SECOND, &[]), [], "the time before counts for nothing");
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
