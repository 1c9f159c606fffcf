//! This file decides when workers are to write checkpoints and how often the workers of a context may die, and keeps the checkpoints.
//!
//! A worker is asked when its program has done nothing for a moment, and rests for far longer than a checkpoint takes. Knows no process and no
//! clock: time is passed in.

use super::handover::idle::Idle;
use outside::Span;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Time for which a program does nothing before its worker writes a checkpoint, unless a test says another.
pub const CHECKPOINT_AFTER: Duration = Duration::from_secs(1);
/// Bytes of a checkpoint, at most. A context that is larger has none.
pub(super) const CHECKPOINT_BYTES: u64 = 64 << 20;
/// Workers of a context that may die by themselves within [`CRASHES_WITHIN`]: with the last of them the context is given up.
pub(super) const CRASHES_MAX: usize = 3;
pub(super) const CRASHES_WITHIN: Duration = Duration::from_secs(60);
/// The part of the time that checkpoints may take: one in so many.
const REST: u32 = 100;
/// Time until a worker is asked again that had no checkpoint, as its context was busy, and as it can have none.
const BUSY_REST: Duration = Duration::from_secs(5);
const NONE_REST: Duration = Duration::from_secs(60);

/// The checkpoints of all contexts.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// Finds contexts that do nothing; none if there are no checkpoints.
    idle: Option<Idle>,
    contexts: FxHashMap<ContextId, Checkpoint>,
}

/// The checkpoint of one context.
#[derive(Debug, Default)]
struct Checkpoint {
    /// The file that it is written into.
    file: Option<OwnedFd>,
    /// The time at which the worker was asked, until it answers.
    asked: Option<Instant>,
    /// The time before which it is not asked again.
    next: Option<Instant>,
    /// Bytes of the last one.
    bytes: Option<u64>,
    /// The times at which workers of the context died by themselves.
    crashes: Vec<Instant>,
}

impl Checkpoints {
    /// None yet; a program does nothing for the time of `after` before the first, if there are to be any.
    pub(super) fn new(after: Option<Duration>) -> Self {
        Self { idle: after.map(Idle::new), contexts: FxHashMap::default() }
    }

    /// A context was sent something to do.
    pub(super) fn is_used(&mut self, ctx_id: ContextId) {
        self.idle.iter_mut().for_each(|idle| idle.is_used(ctx_id));
    }

    /// Returns whether it is time to call [`Self::due`].
    pub(super) fn look(&self, now: Instant) -> bool {
        self.idle.as_ref().is_some_and(|idle| idle.next_due().is_none_or(|next| next <= now))
    }

    /// Returns whether the worker of a context may be asked now.
    pub(super) fn may_ask(&self, ctx_id: ContextId, now: Instant) -> bool {
        let may = |one: &Checkpoint| one.asked.is_none() && one.next.is_none_or(|next| next <= now);
        self.contexts.get(&ctx_id).is_none_or(may)
    }

    /// Looks at the contexts whose workers may be asked, each with the wakings of its rings as for [`Idle::due`]. Returns those that are to be.
    pub(super) fn due(
        &mut self,
        contexts: impl Iterator<Item = (ContextId, Option<u32>)>,
        now: Instant,
    ) -> Vec<ContextId> {
        self.idle.as_mut().map_or_else(Vec::new, |idle| idle.due(contexts, now))
    }

    /// Returns when [`Self::due`] wants to be called next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.idle.as_ref().and_then(Idle::next_due)
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
        (one.bytes, one.next) = (None, Some(now + BUSY_REST));
        let file = match one.file.take() {
            Some(file) => file,
            None => make()?,
        };
        one.asked = Some(now);
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
        let asked = self.contexts.get_mut(&ctx_id).and_then(|one| Some((one.asked.take()?, one)));
        let (asked, one) = asked.ok_or("an answer to nothing that was asked")?;
        let rest = match written {
            Ok(bytes) if bytes > CHECKPOINT_BYTES => return Err("a checkpoint larger than its file"),
            Ok(_) => now.saturating_duration_since(asked).saturating_mul(REST),
            Err(true) => BUSY_REST,
            Err(false) => NONE_REST,
        };
        (one.bytes, one.next) = (written.ok(), Some(now + rest));
        Ok(())
    }

    /// A context's worker has died by itself.
    ///
    /// # Errors
    ///
    /// There is no checkpoint, or the context is to be given up.
    pub(super) fn crashed(&mut self, ctx_id: ContextId, now: Instant) -> Result<(), String> {
        let one = self.contexts.get_mut(&ctx_id).filter(|one| one.bytes.is_some());
        let one = one.ok_or("there is no checkpoint of it")?;
        one.crashes.retain(|at| now.saturating_duration_since(*at) < CRASHES_WITHIN);
        one.crashes.push(now);
        match one.crashes.len() < CRASHES_MAX {
            true => Ok(()),
            false => Err(format!(
                "limit crashes reached: {CRASHES_MAX} of its workers have died within {}; look above for how they ended, and for a newer \
                 driver if it was a fault of the driver's",
                Span(CRASHES_WITHIN)
            )),
        }
    }

    /// Takes the checkpoint of a context: the file and its bytes.
    pub(super) fn take(&mut self, ctx_id: ContextId) -> Option<(OwnedFd, u64)> {
        let one = self.contexts.get_mut(&ctx_id)?;
        Some((one.file.take()?, one.bytes.take()?))
    }

    /// A context has another worker, which has written nothing yet.
    pub(super) fn begins_anew(&mut self, ctx_id: ContextId) {
        if let Some(one) = self.contexts.get_mut(&ctx_id) {
            let crashes = std::mem::take(&mut one.crashes);
            *one = Checkpoint { crashes, ..Checkpoint::default() };
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
    const SECOND: Duration = Duration::from_secs(1);

    fn file() -> io::Result<OwnedFd> {
        shm::create("test", 4096)
    }

    /// One checkpoint that is asked for and written, which takes so long.
    fn written(all: &mut Checkpoints, now: Instant, took: Duration) {
        all.asks(CONTEXT, file, now).unwrap();
        all.answered(CONTEXT, Ok(100), now + took).unwrap();
    }

    #[test]
    fn a_worker_is_asked_seldom_and_once_at_a_time() {
        let (mut all, now) = (Checkpoints::new(Some(SECOND)), Instant::now());
        assert!(all.may_ask(CONTEXT, now));
        all.asks(CONTEXT, file, now).unwrap();
        assert!(!all.may_ask(CONTEXT, now + 1000 * SECOND), "it has not answered");
        for (answer, rest) in [(Ok(5), 100 * SECOND), (Err(true), BUSY_REST), (Err(false), NONE_REST)] {
            let (mut all, now) = (Checkpoints::new(Some(SECOND)), Instant::now());
            all.asks(CONTEXT, file, now).unwrap();
            all.answered(CONTEXT, answer, now + SECOND).unwrap();
            assert!(!all.may_ask(CONTEXT, now + rest) && all.may_ask(CONTEXT, now + SECOND + rest));
        }
        assert!(all.answered(CONTEXT, Ok(CHECKPOINT_BYTES + 1), now).is_err());
        assert!(all.answered(CONTEXT, Ok(1), now).is_err(), "it was asked once");
        assert!(all.answered(ContextId(9), Err(true), now).is_err(), "it was never asked");
        assert_eq!(all.asks(CONTEXT, || Err(5), now).map(|_| ()), Ok(()), "the file is there");
        assert_eq!(all.asks(ContextId(9), || Err(5), now).unwrap_err(), 5);
        assert!(all.answered(ContextId(9), Ok(5), now).is_err());
    }

    #[test]
    fn the_last_of_some_deaths_within_a_minute_is_one_too_many() {
        let (mut all, now) = (Checkpoints::new(Some(SECOND)), Instant::now());
        assert!(all.crashed(CONTEXT, now).unwrap_err().contains("no checkpoint"));
        let mut at = now + CRASHES_WITHIN;
        for dies_after in [SECOND, SECOND, CRASHES_WITHIN - SECOND, 2 * SECOND] {
            written(&mut all, at, Duration::ZERO);
            at += dies_after;
            all.crashed(CONTEXT, at).unwrap();
            assert_eq!(all.take(CONTEXT).map(|(_, bytes)| bytes), Some(100));
            all.begins_anew(CONTEXT);
        }
        written(&mut all, at, Duration::ZERO);
        assert!(all.crashed(CONTEXT, at + SECOND).unwrap_err().contains("limit crashes"));
        all.ends(CONTEXT);
        written(&mut all, at, Duration::ZERO);
        assert!(all.crashed(CONTEXT, at + SECOND).is_ok(), "another context of the same number");
        all.begins_anew(CONTEXT);
        assert!(
            all.crashed(CONTEXT, at + SECOND).unwrap_err().contains("no checkpoint"),
            "it was the other's"
        );
    }

    #[test]
    fn without_a_time_nobody_is_asked() {
        let (mut all, now) = (Checkpoints::new(None), Instant::now());
        assert!(!all.look(now) && all.next_due().is_none());
        assert_eq!(all.due([(CONTEXT, Some(0))].into_iter(), now), []);
    }
}
