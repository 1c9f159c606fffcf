//! This file decides when workers are to write checkpoints and how often the workers of a context may die, and keeps the checkpoints.
//!
//! A worker is asked when it has executed nothing for a moment, and then rests for far longer than the checkpoint took. Contexts are looked at
//! while one of them may have something to write down; a context that has not is looked at again when something is sent to it. Knows no process
//! and no clock: time is passed in.

use outside::Span;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Time for which a worker executes nothing before it writes a checkpoint, unless a test says another: the time between two looks. It may be twice as
/// long, and behind long work [`LOOKS_SELDOM`] times as long.
pub const CHECKPOINT_AFTER: Duration = Duration::from_secs(1);
/// A worker that is busy is looked at less and less often: at last, after so many times the usual time.
const LOOKS_SELDOM: u32 = 4;
/// Bytes of a checkpoint, at most. A context that is larger has none.
pub(super) const CHECKPOINT_BYTES: u64 = 64 << 20;
/// Workers of a context that may die by themselves within [`CRASHES_WITHIN`]: with the last of them the context is given up.
pub(super) const CRASHES_MAX: usize = 3;
pub(super) const CRASHES_WITHIN: Duration = Duration::from_secs(60);
/// The part of the time that checkpoints may take: one in so many.
const REST: u32 = 100;
/// Time until a worker is asked again whose context can have none, or for which there was no file.
const NONE_REST: Duration = Duration::from_secs(60);

/// The checkpoints of all contexts.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// The time between two looks; none if there are no checkpoints.
    every: Option<Duration>,
    /// The time of the next look; none while there is nothing to look for.
    next: Option<Instant>,
    contexts: FxHashMap<ContextId, Checkpoint>,
}

/// The checkpoint of one context.
#[derive(Debug, Default)]
struct Checkpoint {
    /// The file that it is written into.
    file: Option<OwnedFd>,
    turn: Turn,
    /// Looks one after the other that have found the worker busy.
    busy: u32,
    /// The bytes that a successor is to get, whose predecessor is dead.
    for_successor: Option<u64>,
    /// The times at which workers of the context died by themselves.
    crashes: Vec<Instant>,
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
    Rests(Instant),
    /// The context can have none, which is forgotten when it is used after this time.
    HasNone(Instant),
}

/// The state in which a look finds a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The checkpoint has everything, and nothing is executed before something is sent to the worker.
    Covered,
    /// Something was executed since the last look, or may be at any time.
    Busy,
    /// Nothing was executed since the last look, and there is something to write down.
    Idle,
}

impl Checkpoints {
    /// None yet; contexts are looked at so often, if there are to be any.
    pub(super) fn new(every: Option<Duration>) -> Self {
        Self { every, next: None, contexts: FxHashMap::default() }
    }

    /// A context was sent something to do.
    pub(super) fn is_used(&mut self, ctx_id: ContextId, now: Instant) {
        let Some(every) = self.every else { return };
        let mut at = now + every;
        if let Some(one) = self.contexts.get_mut(&ctx_id) {
            match one.turn {
                Turn::Asked(_) => return,
                Turn::HasNone(until) if now < until => return,
                Turn::HasNone(_) => one.turn = Turn::Free,
                Turn::Rests(until) => at = at.max(until),
                Turn::Free => {}
            }
        }
        self.look_at(at);
    }

    fn look_at(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Returns whether it is time to call [`Self::due`].
    pub(super) fn look(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// Looks at the contexts that may have a checkpoint. `seen` is called for those whose workers may be asked. Returns those that are to be.
    pub(super) fn due(
        &mut self,
        contexts: &[(ContextId, bool)],
        seen: impl Fn(&(ContextId, bool)) -> Seen,
        now: Instant,
    ) -> Vec<ContextId> {
        self.next = None;
        let Some(every) = self.every else { return Vec::new() };
        let mut due = Vec::new();
        for context in contexts {
            let one = self.contexts.entry(context.0).or_default();
            let at = match one.turn {
                Turn::Asked(_) | Turn::HasNone(_) => continue,
                Turn::Rests(until) if now < until => until,
                Turn::Free | Turn::Rests(_) => match (seen(context), one.busy) {
                    (Seen::Busy, busy) => {
                        one.busy = busy.saturating_add(1);
                        now + every * (busy / 2 + 1).min(LOOKS_SELDOM)
                    }
                    (seen, _) => {
                        one.busy = 0;
                        due.extend((seen == Seen::Idle).then_some(context.0));
                        continue;
                    }
                },
            };
            self.look_at(at);
        }
        due
    }

    /// Returns when [`Self::due`] wants to be called next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.next
    }

    /// The worker of a context is asked. Returns the file for its checkpoint, made by `make` if there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be made.
    pub(super) fn asks<E>(
        &mut self,
        ctx_id: ContextId,
        make: impl FnOnce() -> Result<OwnedFd, E>,
        now: Instant,
    ) -> Result<BorrowedFd<'_>, E> {
        let one = self.contexts.entry(ctx_id).or_default();
        one.turn = Turn::HasNone(now + NONE_REST);
        let file = match one.file.take() {
            Some(file) => file,
            None => make()?,
        };
        one.turn = Turn::Asked(now);
        let file: &OwnedFd = one.file.insert(file);
        Ok(file.as_fd())
    }

    /// A worker has answered: its checkpoint has so many bytes, or there is none, perhaps `for_now`.
    ///
    /// # Errors
    ///
    /// It was not asked, or has written more than there is room for.
    pub(super) fn answered(
        &mut self,
        ctx_id: ContextId,
        written: Result<u64, bool>,
        now: Instant,
    ) -> Result<(), &'static str> {
        let one = self.contexts.get_mut(&ctx_id).and_then(|one| match one.turn {
            Turn::Asked(asked) => Some((asked, one)),
            _ => None,
        });
        let (asked, one) = one.ok_or("an answer to nothing that was asked")?;
        if written.is_ok_and(|bytes| bytes > CHECKPOINT_BYTES) {
            return Err("a checkpoint larger than its file");
        }
        if written == Err(false) {
            one.turn = Turn::HasNone(now + NONE_REST);
            return Ok(());
        }
        let took = now.saturating_duration_since(asked);
        let until = now + took.saturating_mul(REST).max(self.every.unwrap_or_default());
        one.turn = Turn::Rests(until);
        self.look_at(until);
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

    /// The checkpoint of a context, which has so many bytes, is to go to a successor.
    pub(super) fn is_for_successor(&mut self, ctx_id: ContextId, bytes: u64) {
        self.contexts.entry(ctx_id).or_default().for_successor = Some(bytes);
    }

    /// Takes the checkpoint that is for a context's successor: the file and its bytes.
    pub(super) fn take(&mut self, ctx_id: ContextId) -> Option<(OwnedFd, u64)> {
        let one = self.contexts.get_mut(&ctx_id)?;
        Some((one.file.take()?, one.for_successor.take()?))
    }

    /// A context has another worker, which has written nothing yet.
    pub(super) fn begins_anew(&mut self, ctx_id: ContextId, now: Instant) {
        if let Some(one) = self.contexts.get_mut(&ctx_id) {
            let crashes = std::mem::take(&mut one.crashes);
            *one = Checkpoint { crashes, ..Checkpoint::default() };
            self.is_used(ctx_id, now);
        }
    }

    /// A context has ended.
    pub(super) fn ends(&mut self, ctx_id: ContextId) {
        self.contexts.remove(&ctx_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const CONTEXT: ContextId = ContextId(3);
    const OTHER: ContextId = ContextId(9);
    const SECOND: Duration = Duration::from_secs(1);

    fn file() -> io::Result<OwnedFd> {
        shm::create("test", 4096)
    }

    /// Returns whether a context that was looked at so is to be asked, and when the next look is.
    fn looks(all: &mut Checkpoints, seen: Seen, now: Instant) -> (bool, Option<Instant>) {
        let due = all.due(&[(CONTEXT, false)], |_| seen, now);
        (due == [CONTEXT], all.next_due())
    }

    #[test]
    fn contexts_are_looked_at_while_they_have_something_to_write_down() {
        let (mut all, now) = (Checkpoints::new(Some(SECOND)), Instant::now());
        assert!(!all.look(now + 1000 * SECOND) && all.next_due().is_none());
        all.is_used(CONTEXT, now);
        all.is_used(OTHER, now + SECOND);
        assert_eq!((all.next_due(), all.look(now)), (Some(now + SECOND), false));
        assert!(all.look(now + SECOND));
        assert_eq!(looks(&mut all, Seen::Busy, now), (false, Some(now + SECOND)));
        assert_eq!(looks(&mut all, Seen::Covered, now), (false, None));
        assert_eq!(looks(&mut all, Seen::Idle, now), (true, None));
        assert_eq!(all.due(&[], |_| Seen::Idle, now), []);
    }

    #[test]
    fn a_worker_that_is_busy_is_looked_at_less_and_less_often_until_it_is_not() {
        let (mut all, now) = (Checkpoints::new(Some(SECOND)), Instant::now());
        for after in [1, 1, 2, 2, 3, 3, 4, 4, 4] {
            assert_eq!(looks(&mut all, Seen::Busy, now), (false, Some(now + after * SECOND)));
        }
        assert_eq!(looks(&mut all, Seen::Idle, now), (true, None));
        assert_eq!(looks(&mut all, Seen::Busy, now), (false, Some(now + SECOND)));
    }

    #[test]
    fn a_worker_is_asked_seldom_and_once_at_a_time() {
        let later = |now: Instant| now + 1000 * SECOND;
        for (answer, took, rest) in [
            (Ok(5), SECOND, 100 * SECOND),
            (Err(true), SECOND, 100 * SECOND),
            (Ok(5), Duration::ZERO, SECOND),
        ] {
            let (mut all, now) = (Checkpoints::new(Some(SECOND)), Instant::now());
            all.asks(CONTEXT, file, now).unwrap();
            all.is_used(CONTEXT, now);
            assert_eq!(looks(&mut all, Seen::Idle, later(now)), (false, None), "it has not answered");
            let answered = now + took;
            all.answered(CONTEXT, answer, answered).unwrap();
            assert_eq!(all.next_due(), Some(answered + rest));
            all.is_used(CONTEXT, answered);
            let just_before = answered + rest - Duration::from_nanos(1);
            assert_eq!(looks(&mut all, Seen::Idle, just_before), (false, Some(answered + rest)));
            assert_eq!(looks(&mut all, Seen::Idle, answered + rest), (true, None));
        }
    }

    #[test]
    fn one_that_can_have_none_is_not_looked_at_until_it_is_used_much_later() {
        let (mut all, now) = (Checkpoints::new(Some(SECOND)), Instant::now());
        all.asks(CONTEXT, file, now).unwrap();
        all.answered(CONTEXT, Err(false), now).unwrap();
        all.is_used(CONTEXT, now + NONE_REST - SECOND);
        assert_eq!(looks(&mut all, Seen::Idle, now + 2 * NONE_REST), (false, None));
        all.is_used(CONTEXT, now + NONE_REST);
        assert_eq!(all.next_due(), Some(now + NONE_REST + SECOND));
        assert_eq!(looks(&mut all, Seen::Idle, now + NONE_REST + SECOND), (true, None));
        assert_eq!(all.asks(OTHER, || Err(5), now).unwrap_err(), 5);
        assert!(all.answered(OTHER, Ok(5), now).is_err(), "it was not asked");
    }

    #[test]
    fn an_answer_that_was_not_asked_for_or_is_too_large_is_refused() {
        let (mut all, now) = (Checkpoints::new(Some(SECOND)), Instant::now());
        assert!(all.answered(CONTEXT, Err(true), now).is_err(), "it was never asked");
        all.asks(CONTEXT, file, now).unwrap();
        assert!(all.answered(CONTEXT, Ok(CHECKPOINT_BYTES + 1), now).is_err());
        all.answered(CONTEXT, Ok(CHECKPOINT_BYTES), now).unwrap();
        assert!(all.answered(CONTEXT, Ok(1), now).is_err(), "it was asked once");
        assert_eq!(all.asks(CONTEXT, || Err(5), now).map(|_| ()), Ok(()), "the file is there");
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
            all.is_for_successor(CONTEXT, 100);
            assert_eq!(all.take(CONTEXT).map(|(_, bytes)| bytes), Some(100));
            all.begins_anew(CONTEXT, at);
            assert_eq!(looks(&mut all, Seen::Idle, at), (true, None), "another worker has not been asked");
        }
        assert!(all.crashed(CONTEXT, at + SECOND).unwrap_err().contains("limit crashes"));
        all.ends(CONTEXT);
        assert!(all.crashed(CONTEXT, at + SECOND).is_ok(), "another context of the same number");
    }

    #[test]
    fn without_a_time_no_worker_is_asked() {
        let (mut all, now) = (Checkpoints::new(None), Instant::now());
        all.is_used(CONTEXT, now);
        assert_eq!(looks(&mut all, Seen::Idle, now), (false, None));
    }
}
