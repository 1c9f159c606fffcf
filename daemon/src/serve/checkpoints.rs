//! This file decides when workers are to write checkpoints and how often the workers of a context may die, and keeps the checkpoints.
//!
//! A worker is asked when it has executed nothing for a moment, or when it is busy and its journal does not have all that it did. It is then left
//! alone for far longer than the checkpoint took. This module looks at each context while its worker may have something to write down, and looks at
//! the others again when something is sent to them. The module knows no process and no clock: the caller passes the time in.

use crate::transport::PassedFiles;
use outside::Span;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use shm::CheckpointMark;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The time between two looks at a worker that is busy doubles up to this time.
const LOOKS_MAX: Duration = Duration::from_secs(1);
/// A worker is asked when it has executed nothing for so many times as long as its last checkpoint took: commands wait while it writes one.
const QUIET: u32 = 8;
/// Bytes of a checkpoint, at most. A context that needs more has no checkpoint.
pub(super) const CHECKPOINT_BYTES: u64 = 64 << 20;
/// Workers of a context that may die by themselves within [`CRASHES_WITHIN`]: with the last of them the context is given up.
pub(super) const CRASHES_MAX: usize = 3;
pub(super) const CRASHES_WITHIN: Duration = Duration::from_secs(60);
/// After a checkpoint the worker is left alone for so many times as long as it took.
const PAUSE: u32 = 100;
/// Time that a refusal counts as having taken, at most: the worker may have written everything before it found no room, or has waited for its rings.
const REFUSAL_MAX: Duration = Duration::from_millis(200);
/// Time between two checkpoints of a context, at least: for a moment after one, rings are awake although the page counts them as asleep.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Time between two checkpoints of a context, at most, however long the first one took.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Time until a busy worker is asked again whose checkpoints never count for long, at most.
const BROKEN_MAX: Duration = Duration::from_secs(8);
/// Time until a worker is asked again whose context can have none, or for which there was no file.
const NONE_PAUSE: Duration = Duration::from_secs(60);

/// The checkpoints of all contexts.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// The time between two looks; none if there are no checkpoints.
    every: Option<Duration>,
    /// No look is due before this time; none while no context is to be looked at.
    next: Option<Instant>,
    contexts: FxHashMap<ContextId, Checkpoint>,
}

/// The checkpoint of one context.
#[derive(Debug, Default)]
struct Checkpoint {
    /// The files that checkpoints are written into by turns, so that the last one counts until the next is written.
    slots: [Slot; 2],
    /// The slot with the last checkpoint that was written, and the number of that checkpoint.
    last: usize,
    number: u32,
    /// The journal, once its worker was given it.
    journal: Option<OwnedFd>,
    /// The journal fills, or is full.
    fills: bool,
    /// The number of checkpoints in a row that did not count for long, because the busy worker soon did what no journal has.
    broken: u32,
    turn: Turn,
    /// The time of the next look; none while there is nothing to write down.
    at: Option<Instant>,
    /// Number of looks in a row that found the worker busy, and the time of the last.
    busy: u32,
    busy_at: Option<Instant>,
    /// The time that the last checkpoint took which was written.
    took: Duration,
    /// Refusals for now since the last checkpoint was written: dear ones, after which the worker is left alone for longer than the time between
    /// two looks, and cheap ones, which are counted since the context was used last.
    dear_refusals: u32,
    cheap_refusals: u32,
    /// The context was sent something to do since its worker was asked.
    used_since: bool,
    /// The number of the checkpoint that the successor of a dead worker is to get.
    for_successor: Option<u32>,
    /// The times at which workers of the context died by themselves.
    crashes: Vec<Instant>,
}

/// A file for checkpoints, and the checkpoint in it.
#[derive(Debug, Default)]
struct Slot {
    file: Option<OwnedFd>,
    /// The number of the checkpoint, and its bytes.
    written: Option<(u32, u64)>,
}

/// The parts of the request for a checkpoint.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    /// The number of the checkpoint.
    pub number: u32,
    /// The file for it.
    pub file: BorrowedFd<'a>,
    /// The journal, if the worker has none yet.
    pub journal: Option<BorrowedFd<'a>>,
}

/// The state that the successor of a dead worker is given.
#[derive(Debug)]
pub(super) struct Given {
    /// The number of the checkpoint.
    pub number: u32,
    /// The file that the checkpoint is in, and its length in bytes.
    pub file: OwnedFd,
    pub bytes: u64,
    /// The journal of what followed the checkpoint.
    pub journal: Option<OwnedFd>,
}

/// The files that are made for a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// For a checkpoint.
    Checkpoint,
    /// For the journal.
    Journal,
}

/// The side that has to do something next: the worker, or this process.
#[derive(Clone, Copy, Debug, Default)]
enum Turn {
    /// The worker may be asked.
    #[default]
    Free,
    /// The worker was asked at this time, and has not answered.
    Asked(Instant),
    /// The worker may be asked again from this time on.
    Pauses(Instant),
}

/// The state in which a look finds a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The checkpoint has everything, and nothing is executed before something is sent to the worker.
    Covered,
    /// Something was executed since the last look, or may be at any time.
    Busy,
    /// The worker is busy, and the checkpoint has everything together with its journal.
    Noted,
    /// The worker is busy, and has done what is in no journal.
    Unnoted,
    /// Nothing was executed since the last look, and there is something to write down.
    Idle,
}

impl Checkpoints {
    /// Makes a table without checkpoints. `every` is the time between two looks; without it no worker is asked.
    pub(super) fn new(every: Option<Duration>) -> Self {
        Self { every, next: None, contexts: FxHashMap::default() }
    }

    /// A context was sent something to do.
    pub(super) fn is_used(&mut self, ctx_id: ContextId, now: Instant) {
        let (Some(every), Some(one)) = (self.every, self.contexts.get_mut(&ctx_id)) else { return };
        // The use may have removed the reason of a refusal. Dear refusals count on: the next one is not risked sooner for that.
        one.cheap_refusals = 0;
        let at = now + every;
        let at = match one.turn {
            Turn::Asked(_) => {
                one.used_since = true;
                return;
            }
            Turn::Pauses(until) => at.max(until),
            Turn::Free => at,
        };
        // A busy context is looked at as seldom as before.
        let at = one.at.map_or(at, |planned| if one.busy > 0 { planned } else { planned.min(at) });
        self.look_at(ctx_id, at);
    }

    fn look_at(&mut self, ctx_id: ContextId, at: Instant) {
        if let Some(one) = self.contexts.get_mut(&ctx_id) {
            one.at = Some(at);
            self.next = Some(self.next.map_or(at, |next| next.min(at)));
        }
    }

    /// Returns the contexts that are to be looked at now. The caller tells [`Self::sees`] of those that may have a checkpoint.
    pub(super) fn due(&mut self, now: Instant) -> Vec<ContextId> {
        if self.next.is_none_or(|next| now < next) {
            return Vec::new();
        }
        let is_due = |one: &mut Checkpoint| one.at.take_if(|at| *at <= now).is_some() && one.turn.is_ours();
        let due =
            self.contexts.iter_mut().filter_map(|(ctx_id, one)| is_due(one).then_some(*ctx_id)).collect();
        self.next = self.contexts.values().filter_map(|one| one.at).min();
        due
    }

    /// A look has found a context in this state. Returns whether its worker is to be asked.
    pub(super) fn sees(&mut self, ctx_id: ContextId, seen: Seen, now: Instant) -> bool {
        let (Some(every), Some(one)) = (self.every, self.contexts.get_mut(&ctx_id)) else { return false };
        let busy = std::mem::take(&mut one.busy);
        let at = match seen {
            Seen::Covered => return false,
            // The look before found the context busy too: a program that has just begun to do something is left alone.
            Seen::Unnoted if one.fills || busy > 0 => {
                one.broken = if one.fills { 0 } else { one.broken.saturating_add(1) };
                return true;
            }
            Seen::Noted if one.fills => return true,
            Seen::Busy | Seen::Noted | Seen::Unnoted => {
                if seen == Seen::Noted {
                    one.broken = 0;
                }
                (one.busy, one.busy_at) = (busy.saturating_add(1), Some(now));
                now + doubled(every, busy, LOOKS_MAX)
            }
            Seen::Idle => {
                let quiet = one.took.saturating_mul(QUIET).min(PAUSE_MAX);
                match one.busy_at.map(|at| at + quiet).filter(|at| now < *at) {
                    None => return true,
                    Some(at) => at,
                }
            }
        };
        self.look_at(ctx_id, at);
        false
    }

    /// Returns when [`Self::due`] wants to be called next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.next
    }

    /// The journal of a context fills, or is full.
    pub(super) fn fills(&mut self, ctx_id: ContextId, now: Instant) {
        let (Some(_), Some(one)) = (self.every, self.contexts.get_mut(&ctx_id)) else { return };
        one.fills = true;
        let at = match one.turn {
            Turn::Asked(_) => return,
            Turn::Pauses(until) => now.max(until),
            Turn::Free => now,
        };
        let at = one.at.map_or(at, |planned| planned.min(at));
        self.look_at(ctx_id, at);
    }

    /// The worker of a context is asked. Returns the parts of the request; `make` makes the files that are missing.
    ///
    /// # Errors
    ///
    /// A file cannot be made.
    pub(super) fn asks<E>(
        &mut self,
        ctx_id: ContextId,
        make: impl Fn(Wanted) -> Result<OwnedFd, E>,
        now: Instant,
    ) -> Result<Asked<'_>, E> {
        let one = self.contexts.entry(ctx_id).or_default();
        one.turn = Turn::Pauses(now + NONE_PAUSE);
        let slot = 1 - one.last;
        let is_given = one.journal.is_some();
        if let Err(error) = one.make(slot, make) {
            self.look_at(ctx_id, now + NONE_PAUSE);
            return Err(error);
        }
        let one = self.contexts.entry(ctx_id).or_default();
        (one.turn, one.used_since) = (Turn::Asked(now), false);
        let Checkpoint { slots, journal, number, .. } = one;
        let Slot { file, written } = &mut slots[slot];
        *written = None;
        let file = file.as_ref().expect("it was made just now").as_fd();
        let journal = journal.as_ref().map(AsFd::as_fd).filter(|_| !is_given);
        Ok(Asked { number: CheckpointMark::next_number(*number), file, journal })
    }

    /// A worker has answered: its checkpoint has so many bytes and took so long, or there is no checkpoint, perhaps only for now.
    ///
    /// # Errors
    ///
    /// The worker was not asked, or has written more than there is room for.
    pub(super) fn answered(
        &mut self,
        ctx_id: ContextId,
        written: Result<(u64, Duration), bool>,
        now: Instant,
    ) -> Result<(), &'static str> {
        let one = self.contexts.get_mut(&ctx_id).and_then(|one| match one.turn {
            Turn::Asked(asked) => Some((asked, one)),
            _ => None,
        });
        let (asked, one) = one.ok_or("an answer without a request")?;
        if written.is_ok_and(|(bytes, _)| bytes > CHECKPOINT_BYTES) {
            return Err("a checkpoint larger than its file");
        }
        let every = self.every.unwrap_or_default();
        let since = now.saturating_duration_since(asked);
        // A refusal says nothing of the time that a checkpoint takes.
        let took = written.map_or(REFUSAL_MAX, |(_, took)| took).min(since);
        let pause = took.saturating_mul(PAUSE);
        match written {
            Ok((bytes, _)) => {
                one.took = took;
                one.last = 1 - one.last;
                one.number = CheckpointMark::next_number(one.number);
                one.slots[one.last].written = Some((one.number, bytes));
                one.fills = false;
                (one.dear_refusals, one.cheap_refusals) = (0, 0);
            }
            Err(true) if pause > every => one.dear_refusals = one.dear_refusals.saturating_add(1),
            Err(true) => one.cheap_refusals = one.cheap_refusals.saturating_add(1),
            Err(false) => {
                one.turn = Turn::Pauses(now + NONE_PAUSE);
                if one.used_since {
                    self.look_at(ctx_id, now + NONE_PAUSE);
                }
                return Ok(());
            }
        }
        let until = now + pause.clamp(PAUSE_MIN, PAUSE_MAX).max(every);
        one.turn = Turn::Pauses(until);
        let refused = one.dear_refusals.saturating_add(one.cheap_refusals);
        let broken = doubled(every, one.broken.saturating_sub(1), BROKEN_MAX);
        let at = until.max(now + doubled(every, refused, PAUSE_MAX).max(broken));
        self.look_at(ctx_id, at);
        Ok(())
    }

    /// A context's worker has died by itself.
    ///
    /// # Errors
    ///
    /// The context is to be given up.
    pub(super) fn crashed(&mut self, ctx_id: ContextId, now: Instant) -> Result<(), String> {
        let crashes = &mut self.contexts.entry(ctx_id).or_default().crashes;
        crashes.retain(|at| now.saturating_duration_since(*at) < CRASHES_WITHIN);
        crashes.push(now);
        match crashes.len() < CRASHES_MAX {
            true => Ok(()),
            false => Err(format!(
                "limit crashes reached: {CRASHES_MAX} of its workers have died within {}; look above for how they ended, and for a newer \
                 driver if it was a fault of the driver's",
                Span(CRASHES_WITHIN)
            )),
        }
    }

    /// Returns whether the checkpoint of this number is written.
    pub(super) fn has(&self, ctx_id: ContextId, number: u32) -> bool {
        self.contexts.get(&ctx_id).is_some_and(|one| one.slot_of(number).is_some())
    }

    /// The checkpoint of a number is to go to a successor of the context's worker.
    pub(super) fn is_for_successor(&mut self, ctx_id: ContextId, number: u32) {
        self.contexts.entry(ctx_id).or_default().for_successor = Some(number);
    }

    /// Takes the checkpoint that is for the successor of a context's worker, with the journal.
    pub(super) fn take(&mut self, ctx_id: ContextId) -> Option<Given> {
        let one = self.contexts.get_mut(&ctx_id)?;
        let number = one.for_successor.take()?;
        let slot = one.slot_of(number)?;
        let (_, bytes) = one.slots[slot].written.take()?;
        let file = one.slots[slot].file.take()?;
        Some(Given { number, file, bytes, journal: one.journal.take() })
    }

    /// A context has a worker, its first or another, that has written nothing yet.
    pub(super) fn begins(&mut self, ctx_id: ContextId, now: Instant) {
        let one = self.contexts.entry(ctx_id).or_default();
        let crashes = std::mem::take(&mut one.crashes);
        *one = Checkpoint { crashes, ..Checkpoint::default() };
        self.is_used(ctx_id, now);
    }

    /// A context has ended.
    pub(super) fn ends(&mut self, ctx_id: ContextId) {
        self.contexts.remove(&ctx_id);
    }

    /// Returns whether a worker was asked for a checkpoint and has not answered.
    pub(super) fn is_one_awaited(&self) -> bool {
        self.contexts.values().any(|one| matches!(one.turn, Turn::Asked(_)))
    }

    /// Writes down for another process what workers know of their checkpoints, with their journals. The checkpoints are not passed on: only this
    /// process knows what was sent to a worker after its checkpoint, so the other process has them written anew.
    pub(super) fn pass_on(&self) -> (Vec<PassedCheckpoint>, Vec<BorrowedFd<'_>>) {
        let passed = |(ctx_id, one): (&ContextId, &Checkpoint)| PassedCheckpoint {
            ctx_id: *ctx_id,
            number: one.number,
            has_journal: one.journal.is_some(),
        };
        let files = self.contexts.values().filter_map(|one| one.journal.as_ref()).map(AsFd::as_fd);
        (self.contexts.iter().map(passed).collect(), files.collect())
    }

    /// Goes on with the checkpoints of another process.
    ///
    /// # Errors
    ///
    /// A journal is missing.
    pub(super) fn resume(
        &mut self,
        passed: Vec<PassedCheckpoint>,
        files: &mut PassedFiles,
        now: Instant,
    ) -> io::Result<()> {
        for PassedCheckpoint { ctx_id, number, has_journal } in passed {
            let journal = has_journal.then(|| files.take()).transpose()?;
            self.contexts.insert(ctx_id, Checkpoint { number, journal, ..Checkpoint::default() });
            self.is_used(ctx_id, now);
        }
        Ok(())
    }
}

/// The knowledge that a worker has of its checkpoints, written down for another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PassedCheckpoint {
    ctx_id: ContextId,
    /// The number of the last checkpoint.
    number: u32,
    /// The worker has a journal, which is passed on too.
    has_journal: bool,
}

impl Checkpoint {
    /// Makes the files that are missing.
    fn make<E>(&mut self, slot: usize, make: impl Fn(Wanted) -> Result<OwnedFd, E>) -> Result<(), E> {
        if self.slots[slot].file.is_none() {
            self.slots[slot].file = Some(make(Wanted::Checkpoint)?);
        }
        if self.journal.is_none() {
            self.journal = Some(make(Wanted::Journal)?);
        }
        Ok(())
    }

    /// Returns the slot in which the checkpoint of a number is.
    fn slot_of(&self, number: u32) -> Option<usize> {
        self.slots.iter().position(|slot| slot.written.is_some_and(|(written, _)| written == number))
    }
}

impl Turn {
    /// Returns whether the worker may be asked, now or later.
    fn is_ours(self) -> bool {
        !matches!(self, Self::Asked(_))
    }
}

/// Returns `time` doubled so many times, but no more than the larger of `time` and `max`.
fn doubled(time: Duration, times: u32, max: Duration) -> Duration {
    time.saturating_mul(1 << times.min(12)).min(max.max(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const CONTEXT: ContextId = ContextId(3);
    const OTHER: ContextId = ContextId(9);
    const SECOND: Duration = Duration::from_secs(1);
    const WRITTEN: Result<(u64, Duration), bool> = Ok((5, Duration::ZERO));

    fn file(_: Wanted) -> io::Result<OwnedFd> {
        shm::create("test", 4096)
    }

    /// A context that has begun.
    fn begun(every: Option<Duration>) -> (Checkpoints, Instant) {
        let (mut all, now) = (Checkpoints::new(every), Instant::now());
        all.begins(CONTEXT, now);
        (all, now)
    }

    /// Returns whether a context that was looked at so is to be asked, and when the next look is.
    fn looks(all: &mut Checkpoints, seen: Seen, now: Instant) -> (bool, Option<Instant>) {
        let is_asked = all.due(now).into_iter().any(|ctx_id| all.sees(ctx_id, seen, now));
        (is_asked, all.next_due())
    }

    #[test]
    fn contexts_are_looked_at_while_they_have_something_to_write_down() {
        let (mut all, now) = begun(Some(SECOND));
        assert_eq!(looks(&mut all, Seen::Idle, now), (false, Some(now + SECOND)), "it is too soon");
        assert_eq!(looks(&mut all, Seen::Busy, now + SECOND), (false, Some(now + 2 * SECOND)));
        assert_eq!(looks(&mut all, Seen::Covered, now + 2 * SECOND), (false, None));
        all.is_used(CONTEXT, now);
        assert_eq!(looks(&mut all, Seen::Idle, now + SECOND), (true, None));
        all.is_used(OTHER, now);
        assert_eq!(all.next_due(), None, "it has no worker");
    }

    #[test]
    fn each_context_has_a_time_of_its_own() {
        let (mut all, now) = begun(Some(SECOND));
        let moment = Duration::from_millis(1);
        all.begins(OTHER, now + moment);
        assert_eq!(all.due(now + SECOND), [CONTEXT]);
        assert!(!all.sees(CONTEXT, Seen::Busy, now + SECOND));
        assert_eq!(all.next_due(), Some(now + SECOND + moment));
        assert_eq!(all.due(now + SECOND + moment), [OTHER]);
        assert_eq!(all.next_due(), Some(now + 2 * SECOND));
    }

    #[test]
    fn a_worker_that_is_busy_is_looked_at_less_and_less_often_until_it_is_not() {
        let every = Duration::from_millis(150);
        let (mut all, mut now) = begun(Some(every));
        now += every;
        for after in [150, 300, 600, 1000, 1000].map(Duration::from_millis) {
            assert_eq!(looks(&mut all, Seen::Busy, now), (false, Some(now + after)));
            all.is_used(CONTEXT, now);
            now += after;
        }
        assert_eq!(looks(&mut all, Seen::Idle, now), (true, None));
        all.is_used(CONTEXT, now);
        assert_eq!(looks(&mut all, Seen::Busy, now + every), (false, Some(now + 2 * every)));
    }

    #[test]
    fn a_worker_is_asked_seldom_and_once_at_a_time() {
        let half = SECOND / 2;
        for (answer, answers_after, pause) in [
            (Ok((5, half)), half, 50 * SECOND),
            (Err(true), half, 20 * SECOND),
            (Err(true), Duration::ZERO, PAUSE_MIN),
            (Ok((5, SECOND)), SECOND, PAUSE_MAX),
            (Ok((5, Duration::ZERO)), Duration::ZERO, PAUSE_MIN),
            // The worker was stopped before it read the request, or states an impossible time.
            (Ok((5, Duration::from_millis(2))), 100 * SECOND, SECOND / 5),
            (Ok((5, Duration::MAX)), half, 50 * SECOND),
        ] {
            let (mut all, now) = begun(Some(PAUSE_MIN / 10));
            assert!(looks(&mut all, Seen::Idle, now + SECOND).0);
            all.asks(CONTEXT, file, now).unwrap();
            all.is_used(CONTEXT, now);
            assert_eq!(
                looks(&mut all, Seen::Idle, now + 1000 * SECOND),
                (false, None),
                "it has not answered"
            );
            let answered = now + answers_after;
            all.answered(CONTEXT, answer, answered).unwrap();
            assert_eq!(all.next_due(), Some(answered + pause));
            all.is_used(CONTEXT, answered);
            let just_before = answered + pause - Duration::from_nanos(1);
            assert_eq!(looks(&mut all, Seen::Idle, just_before), (false, Some(answered + pause)));
            assert_eq!(looks(&mut all, Seen::Idle, answered + pause), (true, None));
        }
    }

    #[test]
    fn one_that_can_have_none_for_now_is_asked_less_and_less_often_and_soon_when_it_is_used() {
        let (mut all, mut now) = begun(Some(SECOND));
        now += SECOND;
        for after in [2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(looks(&mut all, Seen::Idle, now), (true, None));
            all.asks(CONTEXT, file, now).unwrap();
            all.answered(CONTEXT, Err(true), now).unwrap();
            assert_eq!(all.next_due(), Some(now + after * SECOND));
            now += after * SECOND;
        }
        assert_eq!(looks(&mut all, Seen::Idle, now), (true, None));
        all.asks(CONTEXT, file, now).unwrap();
        all.answered(CONTEXT, Err(true), now).unwrap();
        all.is_used(CONTEXT, now);
        assert_eq!(all.next_due(), Some(now + SECOND));
    }

    #[test]
    fn dear_refusals_count_although_the_program_has_worked_and_cheap_ones_do_not() {
        for (takes, pauses) in [(0, [2; 6]), (9, [2; 6]), (200, [20, 20, 20, 20, 32, 60])] {
            let (mut all, mut now) = begun(Some(SECOND));
            for pause in pauses {
                assert!(looks(&mut all, Seen::Idle, now + SECOND).0);
                all.asks(CONTEXT, file, now).unwrap();
                all.is_used(CONTEXT, now);
                now += Duration::from_millis(takes);
                all.answered(CONTEXT, Err(true), now).unwrap();
                assert_eq!(all.next_due(), Some(now + pause * SECOND), "if one takes {takes} ms");
                now += pause * SECOND;
                all.is_used(CONTEXT, now);
            }
            // The intervals are the first ones again, once a checkpoint is written.
            for (answer, after) in [(WRITTEN, SECOND), (Err(true), 2 * SECOND)] {
                now += SECOND;
                assert!(looks(&mut all, Seen::Idle, now).0);
                all.asks(CONTEXT, file, now).unwrap();
                all.answered(CONTEXT, answer, now).unwrap();
                assert_eq!(all.next_due(), Some(now + after));
            }
        }
    }

    #[test]
    fn a_program_that_works_now_and_then_is_asked_each_time_if_refusals_are_cheap_and_seldom_if_not() {
        let tick = SECOND / 10;
        for (takes, most) in [(Duration::ZERO, 204), (2 * tick, 16), (5 * tick, 16)] {
            let (mut all, begin) = begun(Some(SECOND));
            let mut asked = 0;
            // The program has something to do every 3 s, for 5 min.
            for ticks in 0..3000 {
                let now = begin + tick * ticks;
                if ticks % 30 == 0 {
                    all.is_used(CONTEXT, now);
                }
                if looks(&mut all, Seen::Idle, now).0 {
                    all.asks(CONTEXT, file, now).unwrap();
                    all.answered(CONTEXT, Err(true), now + takes).unwrap();
                    asked += 1;
                }
            }
            assert!((most / 2..=most).contains(&asked), "{asked} times, if a refusal takes {takes:?}");
        }
    }

    #[test]
    fn a_busy_worker_is_asked_when_no_journal_has_what_it_does_and_seldom_if_that_goes_on() {
        let (mut all, now) = begun(Some(SECOND));
        let mut at = now + SECOND;
        assert_eq!(looks(&mut all, Seen::Noted, at), (false, Some(at + SECOND)));
        at += SECOND;
        for pause in [1, 2, 4, 8, 8] {
            while !looks(&mut all, Seen::Unnoted, at).0 {
                at += SECOND;
            }
            all.asks(CONTEXT, file, at).unwrap();
            all.answered(CONTEXT, WRITTEN, at).unwrap();
            assert_eq!(all.next_due(), Some(at + pause * SECOND));
            at += pause * SECOND;
        }
        assert!(!looks(&mut all, Seen::Noted, at).0);
        at += SECOND;
        assert!(looks(&mut all, Seen::Unnoted, at).0);
        all.asks(CONTEXT, file, at).unwrap();
        all.answered(CONTEXT, WRITTEN, at).unwrap();
        assert_eq!(all.next_due(), Some(at + SECOND), "the one before was of use");
    }

    #[test]
    fn a_journal_that_fills_is_emptied_as_soon_as_the_worker_may_be_asked() {
        let (mut all, now) = begun(Some(SECOND));
        all.fills(CONTEXT, now);
        assert_eq!(looks(&mut all, Seen::Noted, now), (true, None));
        all.asks(CONTEXT, file, now).unwrap();
        all.fills(CONTEXT, now);
        assert_eq!(all.next_due(), None, "it is asked");
        let took = SECOND / 10;
        all.answered(CONTEXT, Ok((5, took)), now + took).unwrap();
        let at = now + took + 100 * took;
        all.fills(CONTEXT, now + took);
        assert_eq!(looks(&mut all, Seen::Unnoted, at), (true, None));
        all.asks(CONTEXT, file, at).unwrap();
        all.answered(CONTEXT, Err(true), at).unwrap();
        assert!(looks(&mut all, Seen::Noted, at + 60 * SECOND).0, "it is still full");
    }

    #[test]
    fn the_last_checkpoint_stays_until_the_next_is_written() {
        let (mut all, now) = begun(Some(SECOND));
        for number in 1..=3 {
            let asked = all.asks(CONTEXT, file, now).unwrap();
            assert_eq!((asked.number, asked.journal.is_some()), (number, number == 1));
            assert!(number == 1 || all.has(CONTEXT, number - 1));
            all.answered(CONTEXT, Err(true), now).unwrap();
            assert_eq!(all.asks(CONTEXT, file, now).unwrap().number, number);
            all.answered(CONTEXT, Ok((number.into(), Duration::ZERO)), now).unwrap();
            assert!(all.has(CONTEXT, number) && (number == 1 || all.has(CONTEXT, number - 1)));
        }
        assert!(!all.has(CONTEXT, 1));
        all.is_for_successor(CONTEXT, 2);
        let given = all.take(CONTEXT).unwrap();
        assert_eq!((given.number, given.bytes, given.journal.is_some()), (2, 2, true));
    }

    #[test]
    fn a_checkpoint_that_takes_long_is_written_behind_a_longer_rest() {
        let (mut all, now) = begun(Some(SECOND));
        all.asks(CONTEXT, file, now).unwrap();
        let mut at = now + SECOND / 2;
        all.answered(CONTEXT, Ok((5, SECOND / 2)), at).unwrap();
        at += 50 * SECOND;
        assert_eq!(looks(&mut all, Seen::Busy, at), (false, Some(at + SECOND)));
        assert_eq!(looks(&mut all, Seen::Idle, at + SECOND), (false, Some(at + 4 * SECOND)));
        assert_eq!(looks(&mut all, Seen::Idle, at + 4 * SECOND), (true, None));
    }

    #[test]
    fn a_refusal_does_not_say_how_long_a_checkpoint_takes() {
        let (mut all, now) = begun(Some(SECOND));
        all.asks(CONTEXT, file, now).unwrap();
        all.answered(CONTEXT, Ok((5, SECOND / 2)), now + SECOND / 2).unwrap();
        let mut at = now + 60 * SECOND;
        all.asks(CONTEXT, file, at).unwrap();
        all.answered(CONTEXT, Err(true), at).unwrap();
        at += 60 * SECOND;
        assert_eq!(looks(&mut all, Seen::Busy, at), (false, Some(at + SECOND)));
        assert_eq!(looks(&mut all, Seen::Idle, at + SECOND), (false, Some(at + 4 * SECOND)));
    }

    #[test]
    fn one_that_can_have_none_is_looked_at_once_it_was_used_and_a_minute_has_passed() {
        for answers in [true, false] {
            let (mut all, now) = begun(Some(SECOND));
            assert!(looks(&mut all, Seen::Idle, now + SECOND).0);
            let make = |wanted| if answers { Ok(file(wanted).unwrap()) } else { Err(5) };
            assert_eq!(all.asks(CONTEXT, make, now).err(), (!answers).then_some(5));
            if answers {
                all.answered(CONTEXT, Err(false), now).unwrap();
            }
            let again = (!answers).then_some(now + NONE_PAUSE);
            assert_eq!(all.next_due(), again, "it has not done anything since, and files may be there again");
            all.is_used(CONTEXT, now + NONE_PAUSE - SECOND);
            let just_before = now + NONE_PAUSE - Duration::from_nanos(1);
            assert_eq!(looks(&mut all, Seen::Idle, just_before), (false, Some(now + NONE_PAUSE)));
            assert_eq!(looks(&mut all, Seen::Idle, now + NONE_PAUSE), (true, None));
        }
        let (mut all, now) = begun(Some(SECOND));
        assert!(looks(&mut all, Seen::Idle, now + SECOND).0);
        all.asks(CONTEXT, file, now).unwrap();
        all.is_used(CONTEXT, now);
        all.answered(CONTEXT, Err(false), now).unwrap();
        assert_eq!(all.next_due(), Some(now + NONE_PAUSE), "what was in the way may be gone");
        let (mut all, now) = begun(None);
        assert!(all.answered(OTHER, WRITTEN, now).is_err(), "it was not asked");
    }

    #[test]
    fn an_answer_that_was_not_asked_for_or_is_too_large_is_refused() {
        let (mut all, now) = (Checkpoints::new(Some(SECOND)), Instant::now());
        assert!(all.answered(CONTEXT, Err(true), now).is_err(), "it was never asked");
        all.asks(CONTEXT, file, now).unwrap();
        assert!(all.answered(CONTEXT, Ok((CHECKPOINT_BYTES + 1, SECOND)), now).is_err());
        all.answered(CONTEXT, Ok((CHECKPOINT_BYTES, SECOND)), now).unwrap();
        assert!(all.answered(CONTEXT, WRITTEN, now).is_err(), "it was asked once");
        all.asks(CONTEXT, file, now).unwrap();
        all.answered(CONTEXT, Err(true), now).unwrap();
        assert_eq!(all.asks(CONTEXT, |_| Err(5), now).map(|_| ()), Ok(()), "the files are there");
    }

    #[test]
    fn the_last_of_some_deaths_within_a_minute_is_one_too_many() {
        let (mut all, now) = (Checkpoints::new(Some(SECOND)), Instant::now());
        let mut at = now + CRASHES_WITHIN;
        for dies_after in [SECOND, SECOND, CRASHES_WITHIN - SECOND, 2 * SECOND] {
            all.asks(CONTEXT, file, at).unwrap();
            at += dies_after;
            all.crashed(CONTEXT, at).unwrap();
            assert!(all.take(CONTEXT).is_none(), "a checkpoint of how many bytes?");
            all.asks(CONTEXT, file, at).unwrap();
            all.answered(CONTEXT, Ok((100, Duration::ZERO)), at).unwrap();
            all.is_for_successor(CONTEXT, 1);
            assert_eq!(all.take(CONTEXT).map(|given| (given.number, given.bytes)), Some((1, 100)));
            all.begins(CONTEXT, at);
            assert_eq!(
                looks(&mut all, Seen::Idle, at + SECOND),
                (true, None),
                "another worker has not been asked"
            );
        }
        assert!(all.crashed(CONTEXT, at + SECOND).unwrap_err().contains("limit crashes"));
        all.ends(CONTEXT);
        assert!(all.crashed(CONTEXT, at + SECOND).is_ok(), "another context of the same number");
    }

    #[test]
    fn without_a_time_no_worker_is_asked() {
        let (mut all, now) = begun(None);
        all.is_used(CONTEXT, now);
        assert_eq!(looks(&mut all, Seen::Idle, now + SECOND), (false, None));
    }
}
