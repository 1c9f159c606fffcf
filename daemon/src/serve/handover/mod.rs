//! The passing of contexts from their workers to successors, as a state machine for each.
//!
//! ```text
//!            ready              prelude built          writes            both have said so
//!   Starts ---------> Prepares ---------------> Rests ---------> Moves ---------------------> done
//!                     |      ^                  |   ^
//!                     `------'    stays for now v   | again, after a pause
//!              that took long                   Waits
//! ```
//!
//! Any other event, and a stage that lasts too long, calls the hand-over off. This file knows no process, socket or clock: time is passed in.

pub(super) mod failure;
pub(super) mod host_memory;
pub(super) mod idle;
pub(super) mod restless;
pub(super) mod room;
pub(super) mod waits;

use config::HangLimits;
use outside::Span;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Contexts of a VM that may be handed over at a time: each has two workers, and two drivers.
pub(super) const HAND_OVERS_MAX: usize = 4;
/// Time in which the process of a successor has to start; it starts no driver in that time.
pub(super) const START_PATIENCE: Duration = Duration::from_secs(30);
/// Time in which a successor builds the parts that it can while the context goes on.
pub(super) const PREPARE_PATIENCE: Duration = Duration::from_secs(300);
/// If a part of the prelude takes less than this time, so little has changed meanwhile that the worker may rest.
pub(super) const SHORT_PART: Duration = Duration::from_millis(20);
/// Parts of a prelude, at most: the hand-over does not wait for a program that makes objects all the time.
pub(super) const PARTS_MAX: u32 = 5;
/// Time in which a worker that is to come to rest has to answer, beyond the time for which a submission may run.
pub(super) const REST_PATIENCE: Duration = Duration::from_secs(10);
/// Time in which everything is written, read and built up again, beside the time for the start of a driver.
pub(super) const MOVE_PATIENCE: Duration = Duration::from_secs(60);
/// Time after which a worker that stays for now is asked again.
pub(super) const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Time for which such a worker is asked again.
pub(super) const ASKED_FOR: Duration = Duration::from_secs(10);

/// The party that wants a context to be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// An operator, through the broker.
    Operator,
    /// The option for tests.
    Test,
    /// The context itself: it has been idle for long, or its program submits work.
    Itself,
    /// The broker, which needs the memory.
    Broker,
}

/// The purpose of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The context gets another worker.
    Restart,
    /// The context is swapped out: its successor has no driver.
    SwapOut,
    /// The context was swapped out, and its program goes on.
    SwapIn,
    /// The context's worker has died by itself: its successor takes over the state in the checkpoint.
    Recover,
    /// The context was loaded from a file of the frontend, and has no worker yet.
    Load,
}

impl Purpose {
    /// Returns whether the program already waits when its successor starts, so that the driver starts during that wait. At a restart the driver starts
    /// earlier, for the prelude.
    pub(super) fn holds_the_program_up(self) -> bool {
        matches!(self, Self::SwapIn | Self::Recover | Self::Load)
    }
}

/// The stage of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The successor starts.
    Starts,
    /// The worker writes down, and the successor builds, the parts that can be built while the context goes on.
    Prepares {
        /// The number of this part, from 1.
        part: u32,
        /// The time at which this part began.
        since: Instant,
    },
    /// The worker has been told to hand over: it comes to rest, and waits for its submissions.
    Rests,
    /// The worker has gone on for now, and will be told again.
    Waits,
    /// The worker writes, and the successor builds up; the two say when they are done, in any order.
    Moves {
        /// The worker is done.
        handed_over: bool,
        /// The successor is done.
        taken_over: bool,
    },
}

/// The next step when a successor has made a part of the prelude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepared {
    /// Much may have changed meanwhile: the successor is to make another part.
    More,
    /// The worker may rest.
    Enough,
}

/// The next step when a time is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The worker is to be told to hand over again.
    Again,
    /// The hand-over is to be called off, for this reason.
    CallOff(String),
}

/// The GPUs that a context changes, by their indices among those of the VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GpuMoves {
    /// The GPUs that the context comes to.
    pub(super) comes_to: Vec<u8>,
    /// The GPUs that the context leaves if the hand-over succeeds.
    pub(super) leaves: Vec<u8>,
}

/// One hand-over.
#[derive(Clone, Debug)]
pub(super) struct HandOver {
    /// The party that wants the hand-over, and the purpose.
    pub(super) asker: Asker,
    pub(super) purpose: Purpose,
    pub(super) moves: GpuMoves,
    pub(super) stage: Stage,
    /// The successor can take over memory of the worker's driver.
    pub(super) is_at_home: bool,
    /// The time at which the hand-over was asked for.
    asked: Instant,
    /// The time at which the present stage has lasted too long, or is over.
    until: Instant,
    /// The time at which the worker was told to hand over first, and last.
    first: Option<Instant>,
    rests_since: Option<Instant>,
    /// Time in which everything is to be written, read and built up again.
    move_patience: Duration,
}

/// The time that a hand-over took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Took {
    /// The time from when the worker was told to hand over to when the successor was told to go on.
    pub(super) pause: Duration,
    /// The time since the hand-over was asked for.
    pub(super) total: Duration,
}

/// All hand-overs of a VM that are under way, and the count of all so far.
#[derive(Debug)]
pub(super) struct HandOvers {
    under_way: FxHashMap<ContextId, HandOver>,
    /// Time in which a driver has to start, where no prelude has had it started while the context went on.
    driver_timeout: Duration,
    /// Time in which a worker answers.
    rest_patience: Duration,
    /// The time for which a worker that stays for now is asked again.
    pub(super) asked_for: Duration,
    /// The numbers of hand-overs that were done, and that failed.
    pub(super) done: u64,
    pub(super) failed: u64,
}

impl HandOvers {
    /// Begins without hand-overs; `limits` say how long a submission may run, `driver_timeout` how long a driver may take to start.
    pub(super) fn new(limits: &HangLimits, driver_timeout: Duration) -> Self {
        let rest_patience = limits.max_submit_time.saturating_add(REST_PATIENCE);
        let under_way = FxHashMap::default();
        Self { under_way, driver_timeout, rest_patience, asked_for: ASKED_FOR, done: 0, failed: 0 }
    }

    /// Returns whether one more may begin.
    ///
    /// # Errors
    ///
    /// The reason why none may begin: as many as allowed are under way, or one of this context is.
    pub(super) fn admit(&self, ctx_id: ContextId, purpose: Purpose) -> Result<(), String> {
        if self.under_way.contains_key(&ctx_id) {
            return Err("it is being restarted already".into());
        }
        // Programs that want to go on are not kept waiting, and their contexts have one driver each.
        if !purpose.holds_the_program_up() && self.under_way.len() >= HAND_OVERS_MAX {
            return Err(format!(
                "limit hand_overs ({HAND_OVERS_MAX}) reached: restart it when others of the VM are done"
            ));
        }
        Ok(())
    }

    /// A successor starts.
    pub(super) fn begins(
        &mut self,
        ctx_id: ContextId,
        (asker, purpose): (Asker, Purpose),
        moves: GpuMoves,
        now: Instant,
    ) {
        let (stage, until) = (Stage::Starts, now + START_PATIENCE);
        let (first, rests_since) = Default::default();
        let driver = if purpose.holds_the_program_up() { self.driver_timeout } else { Duration::ZERO };
        let hand_over = HandOver {
            asker,
            purpose,
            moves,
            stage,
            is_at_home: false,
            asked: now,
            until,
            first,
            rests_since,
            move_patience: MOVE_PATIENCE.saturating_add(driver),
        };
        self.under_way.insert(ctx_id, hand_over);
    }

    /// The worker is dead, so its context is paused already.
    pub(super) fn pauses(&mut self, ctx_id: ContextId, now: Instant) {
        if let Some(hand_over) = self.under_way.get_mut(&ctx_id) {
            hand_over.rests_since = Some(now);
        }
    }

    /// The successor has started, and waits until this time for its turn to take its context over.
    pub(super) fn waits_for_turn(&mut self, ctx_id: ContextId, until: Instant) {
        if let Some(hand_over) = self.under_way.get_mut(&ctx_id) {
            hand_over.until = until;
        }
    }

    /// The successor has been told to take over the checkpoint of its dead predecessor, or a loaded context. Returns whether that step was due.
    pub(super) fn recovers(&mut self, ctx_id: ContextId, now: Instant) -> bool {
        let hand_over = self.under_way.get_mut(&ctx_id).filter(|it| it.stage == Stage::Starts);
        let Some(hand_over) = hand_over else { return false };
        let stage = Stage::Moves { handed_over: true, taken_over: false };
        (hand_over.stage, hand_over.until) = (stage, now + hand_over.move_patience);
        true
    }

    /// Returns the contexts whose workers are dead and whose successors have not taken over yet.
    pub(super) fn recovering(&self) -> impl Iterator<Item = ContextId> {
        let all = self.under_way.iter().filter(|(_, hand_over)| hand_over.purpose == Purpose::Recover);
        all.map(|(ctx_id, _)| *ctx_id)
    }

    /// Returns the hand-over of a context.
    pub(super) fn get(&self, ctx_id: ContextId) -> Option<&HandOver> {
        self.under_way.get(&ctx_id)
    }

    /// Returns whether a context is being swapped out.
    pub(super) fn is_swapping_out(&self, ctx_id: ContextId) -> bool {
        self.get(ctx_id).is_some_and(|hand_over| hand_over.purpose == Purpose::SwapOut)
    }

    /// The successor builds the parts that it can. Returns whether that step was due.
    pub(super) fn prepares(&mut self, ctx_id: ContextId, now: Instant) -> bool {
        let hand_over = self.under_way.get_mut(&ctx_id).filter(|it| it.stage == Stage::Starts);
        let Some(hand_over) = hand_over else { return false };
        let stage = Stage::Prepares { part: 1, since: now };
        (hand_over.stage, hand_over.until) = (stage, now + PREPARE_PATIENCE);
        true
    }

    /// The successor has made a part of the prelude, and says whether it can take over memory of the worker's driver. Returns the next step.
    ///
    /// # Errors
    ///
    /// The successor was not told to make anything.
    pub(super) fn prepared(
        &mut self,
        ctx_id: ContextId,
        at_home: bool,
        now: Instant,
    ) -> Result<Prepared, &'static str> {
        let under_way = self.under_way.get_mut(&ctx_id);
        match under_way.map(|HandOver { stage, is_at_home, .. }| (stage, is_at_home)) {
            Some((Stage::Prepares { part, since }, is_at_home)) => {
                // Memory comes with the part that follows the first, or the one in which the successor first says this.
                let misses_memory = *part == 1 || at_home && !*is_at_home;
                *is_at_home = at_home;
                let is_short = now.saturating_duration_since(*since) < SHORT_PART;
                if *part == PARTS_MAX || is_short && !misses_memory {
                    return Ok(Prepared::Enough);
                }
                (*part, *since) = (*part + 1, now);
                Ok(Prepared::More)
            }
            _ => Err("the successor has built a prelude that it was not told to build"),
        }
    }

    /// The worker has been told to hand over.
    pub(super) fn rests(&mut self, ctx_id: ContextId, now: Instant) {
        if let Some(hand_over) = self.under_way.get_mut(&ctx_id) {
            hand_over.first.get_or_insert(now);
            hand_over.rests_since = Some(now);
            (hand_over.stage, hand_over.until) = (Stage::Rests, now + self.rest_patience);
        }
    }

    /// The worker stays for now, or could not be told to hand over yet.
    ///
    /// # Errors
    ///
    /// The worker has stayed for too long: the hand-over is to be called off.
    pub(super) fn waits(&mut self, ctx_id: ContextId, reason: &str, now: Instant) -> Result<(), String> {
        let Some(hand_over) = self.under_way.get_mut(&ctx_id) else { return Ok(()) };
        let (first, again) = (*hand_over.first.get_or_insert(now), now + AGAIN_AFTER);
        if again > first + self.asked_for {
            return Err(format!("{reason}, for {}", Span(self.asked_for)));
        }
        (hand_over.stage, hand_over.until) = (Stage::Waits, again);
        Ok(())
    }

    /// The worker writes, and the successor has been told to read.
    pub(super) fn moves(&mut self, ctx_id: ContextId, now: Instant) {
        let Some(hand_over) = self.under_way.get_mut(&ctx_id) else { return };
        if hand_over.stage == Stage::Rests {
            let stage = Stage::Moves { handed_over: false, taken_over: false };
            (hand_over.stage, hand_over.until) = (stage, now + hand_over.move_patience);
        }
    }

    /// The worker has handed over. Returns whether the successor has taken over too.
    pub(super) fn handed_over(&mut self, ctx_id: ContextId) -> bool {
        match self.under_way.get_mut(&ctx_id).map(|hand_over| &mut hand_over.stage) {
            Some(Stage::Moves { handed_over, taken_over }) => {
                *handed_over = true;
                *taken_over
            }
            _ => false,
        }
    }

    /// The successor has taken over. Returns whether the worker has handed over too.
    ///
    /// # Errors
    ///
    /// The successor was not told to take over, or says a second time that it has.
    pub(super) fn taken_over(&mut self, ctx_id: ContextId) -> Result<bool, String> {
        match self.under_way.get_mut(&ctx_id).map(|hand_over| &mut hand_over.stage) {
            Some(Stage::Moves { handed_over, taken_over }) if !*taken_over => {
                *taken_over = true;
                Ok(*handed_over)
            }
            _ => Err("the successor has taken over although it was given nothing".into()),
        }
    }

    /// The successor is the worker now. Returns the hand-over, and the time that it took.
    pub(super) fn succeeds(&mut self, ctx_id: ContextId, now: Instant) -> Option<(HandOver, Took)> {
        let hand_over = self.under_way.remove(&ctx_id)?;
        self.done += 1;
        let since = |at: Instant| now.saturating_duration_since(at);
        let pause = hand_over.rests_since.map(since).unwrap_or_default();
        let took = Took { pause, total: since(hand_over.asked) };
        Some((hand_over, took))
    }

    /// A hand-over is called off, or its context has ended.
    pub(super) fn fails(&mut self, ctx_id: ContextId) -> Option<HandOver> {
        let hand_over = self.under_way.remove(&ctx_id)?;
        self.failed += 1;
        Some(hand_over)
    }

    /// Returns the steps that are due.
    pub(super) fn due(&self, now: Instant) -> Vec<(ContextId, Due)> {
        let over = self.under_way.iter().filter(|(_, hand_over)| hand_over.until <= now);
        let due = |hand_over: &HandOver| match hand_over.stage {
            Stage::Starts => {
                Due::CallOff(format!("the successor has not started within {}", Span(START_PATIENCE)))
            }
            Stage::Prepares { .. } => Due::CallOff(format!(
                "the successor has not created devices and pipelines within {}",
                Span(PREPARE_PATIENCE)
            )),
            Stage::Waits => Due::Again,
            Stage::Rests => Due::CallOff(format!(
                "its submissions have not completed within {}, or its worker does not come to rest",
                Span(self.rest_patience)
            )),
            Stage::Moves { handed_over, .. } => {
                let what = match handed_over {
                    false => "its worker has not written everything",
                    true => "the successor has not built everything up",
                };
                let remedy = match hand_over.purpose.holds_the_program_up() {
                    true => {
                        ", the start of the GPU's driver included: raise --driver-timeout if this host is slow or busy"
                    }
                    false => "",
                };
                Due::CallOff(format!("{what} within {}{remedy}", Span(hand_over.move_patience)))
            }
        };
        over.map(|(ctx_id, hand_over)| (*ctx_id, due(hand_over))).collect()
    }

    /// Returns when [`Self::due`] has something next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.under_way.values().map(|hand_over| hand_over.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: ContextId = ContextId(3);
    const SECOND: Duration = Duration::from_secs(1);

    /// One hand-over whose successor starts.
    fn begun(now: Instant) -> HandOvers {
        let mut all = HandOvers::new(
            &HangLimits { max_submit_time: 30 * SECOND, ..HangLimits::default() },
            100 * SECOND,
        );
        all.admit(CONTEXT, Purpose::Restart).unwrap();
        all.begins(CONTEXT, (Asker::Operator, Purpose::Restart), GpuMoves::default(), now);
        all
    }

    fn stage(all: &HandOvers) -> Stage {
        all.get(CONTEXT).unwrap().stage
    }

    #[test]
    fn it_is_done_when_both_have_said_so_in_any_order() {
        for worker_first in [true, false] {
            let now = Instant::now();
            let mut all = begun(now);
            all.rests(CONTEXT, now + SECOND);
            all.moves(CONTEXT, now + 2 * SECOND);
            if worker_first {
                assert!(!all.handed_over(CONTEXT));
                assert_eq!(all.taken_over(CONTEXT), Ok(true));
            } else {
                assert_eq!(all.taken_over(CONTEXT), Ok(false));
                assert!(all.taken_over(CONTEXT).is_err(), "once is enough");
                assert!(all.handed_over(CONTEXT));
            }
            let took = Took { pause: 2 * SECOND, total: 3 * SECOND };
            let (hand_over, found) = all.succeeds(CONTEXT, now + 3 * SECOND).unwrap();
            assert_eq!((hand_over.asker, found), (Asker::Operator, took));
            assert_eq!((all.done, all.failed, all.next_due()), (1, 0, None));
        }
    }

    #[test]
    fn a_prelude_has_parts_until_one_is_short_or_there_are_many() {
        let long = |part: u32| if part.is_multiple_of(2) { SHORT_PART } else { 30 * SECOND };
        // The second part has memory, so it follows however short the first was.
        for parts in 2..=PARTS_MAX + 1 {
            let mut now = Instant::now();
            let mut all = begun(now);
            assert!(all.prepared(CONTEXT, false, now).is_err());
            all.prepares(CONTEXT, now);
            for part in 1..parts.min(PARTS_MAX) {
                now += long(part);
                assert_eq!(all.prepared(CONTEXT, false, now), Ok(Prepared::More), "part {part} of {parts}");
            }
            now += if parts < PARTS_MAX { SHORT_PART / 2 } else { SECOND };
            assert_eq!(all.prepared(CONTEXT, false, now), Ok(Prepared::Enough), "{parts} parts");
            all.rests(CONTEXT, now);
            assert!(all.prepared(CONTEXT, false, now).is_err());
        }
    }

    #[test]
    fn memory_is_in_the_part_behind_the_first_and_behind_the_one_that_says_that_it_can_be_had() {
        let now = Instant::now();
        for first in [true, false] {
            let mut all = begun(now);
            all.prepares(CONTEXT, now);
            assert_eq!(all.prepared(CONTEXT, first, now), Ok(Prepared::More), "however short the first was");
            assert_eq!(all.get(CONTEXT).unwrap().is_at_home, first);
            if !first {
                assert_eq!(all.prepared(CONTEXT, true, now), Ok(Prepared::More), "the program has a GPU now");
            }
            assert_eq!(all.prepared(CONTEXT, true, now), Ok(Prepared::Enough));
        }
    }

    #[test]
    fn a_successor_that_was_given_nothing_has_taken_nothing_over() {
        let now = Instant::now();
        let mut all = begun(now);
        assert!(all.taken_over(CONTEXT).is_err());
        all.rests(CONTEXT, now);
        assert!(all.taken_over(CONTEXT).is_err());
        assert!(!all.handed_over(CONTEXT));
        assert!(all.taken_over(ContextId(4)).is_err());
        let failed = [all.fails(CONTEXT), all.fails(CONTEXT)].map(|failed| failed.map(|it| it.asker));
        assert_eq!(failed, [Some(Asker::Operator), None]);
        assert_eq!(all.failed, 1);
    }

    #[test]
    fn one_that_stays_for_now_is_asked_again_for_some_time() {
        let begin = Instant::now();
        let (mut all, mut now) = (begun(begin), begin);
        let mut asked = 0;
        let reason = loop {
            all.rests(CONTEXT, now);
            asked += 1;
            if let Err(reason) = all.waits(CONTEXT, "it waits for a semaphore", now) {
                break reason;
            }
            assert_eq!((stage(&all), all.due(now)), (Stage::Waits, vec![]));
            now = all.next_due().unwrap();
            assert_eq!(all.due(now), [(CONTEXT, Due::Again)]);
        };
        assert_eq!((reason.as_str(), asked), ("it waits for a semaphore, for 10 s", 201));
        // The pause is that of the last attempt.
        all.rests(CONTEXT, now);
        all.moves(CONTEXT, now);
        let (_, took) = all.succeeds(CONTEXT, now + SECOND).unwrap();
        assert_eq!((took.pause, took.total), (SECOND, ASKED_FOR + SECOND));
    }

    #[test]
    fn each_stage_has_its_time() {
        let now = Instant::now();
        let mut all = begun(now);
        let late = |all: &HandOvers, patience: Duration, what: &str| {
            assert_eq!(all.due(now + patience - Duration::from_millis(1)), []);
            let due = all.due(now + patience);
            assert!(matches!(&due[..], [(CONTEXT, Due::CallOff(why))] if why.contains(what)), "{due:?}");
        };
        late(&all, START_PATIENCE, "not started");
        assert!(all.prepares(CONTEXT, now) && !all.prepares(CONTEXT, now), "once");
        late(&all, PREPARE_PATIENCE, "devices and pipelines");
        all.rests(CONTEXT, now);
        late(&all, 30 * SECOND + REST_PATIENCE, "submissions have not completed within 40 s");
        all.moves(CONTEXT, now);
        late(&all, MOVE_PATIENCE, "not written");
        all.handed_over(CONTEXT);
        late(&all, MOVE_PATIENCE, "not built");
    }

    #[test]
    fn a_program_that_waits_for_a_driver_to_start_waits_as_long_as_the_driver_may_take() {
        let now = Instant::now();
        for purpose in [Purpose::SwapIn, Purpose::Recover, Purpose::Load] {
            let mut all = begun(now);
            all.fails(CONTEXT);
            all.begins(CONTEXT, (Asker::Itself, purpose), GpuMoves::default(), now);
            match purpose {
                Purpose::SwapIn => {
                    all.rests(CONTEXT, now);
                    all.moves(CONTEXT, now);
                }
                _ => assert!(all.recovers(CONTEXT, now)),
            }
            let patience = MOVE_PATIENCE + 100 * SECOND;
            assert_eq!(all.due(now + patience - Duration::from_millis(1)), []);
            let due = all.due(now + patience);
            let is_told = |why: &str| why.contains("raise --driver-timeout");
            assert!(matches!(&due[..], [(CONTEXT, Due::CallOff(why))] if is_told(why)), "{due:?}");
        }
    }

    #[test]
    fn a_context_is_handed_over_once_at_a_time_and_a_vm_has_few_such() {
        let now = Instant::now();
        let mut all = begun(now);
        assert!(all.admit(CONTEXT, Purpose::SwapIn).unwrap_err().contains("already"));
        for other in 4..7 {
            all.admit(ContextId(other), Purpose::Restart).unwrap();
            all.begins(ContextId(other), (Asker::Test, Purpose::Restart), GpuMoves::default(), now);
        }
        for purpose in [Purpose::Restart, Purpose::SwapOut] {
            assert!(all.admit(ContextId(7), purpose).unwrap_err().contains("limit hand_overs (4)"));
        }
        assert_eq!(all.admit(ContextId(7), Purpose::SwapIn), Ok(()), "a program is not kept waiting");
        assert_eq!(all.fails(ContextId(4)).map(|it| it.asker), Some(Asker::Test));
        assert_eq!(all.admit(ContextId(7), Purpose::Restart), Ok(()));
    }
}
