//! The workers that die by themselves, and the messages that they were sent but have not executed: a successor gets these.
//!
//! A worker says in its status page how many messages it has executed. All that it has executed is in its checkpoint or in its journal; otherwise
//! the mark of the checkpoint is gone.

use super::backlogs::Backlogs;
use super::successors::needs_driver;
use super::{Worker, Workers};
use crate::device::Owner;
use crate::ipc::{Fence, Outbox, ToWorker};
use protocol::ids::ContextId;
use shm::Progress;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The life of a worker's process.
#[derive(Debug)]
pub(super) enum Life {
    /// The process runs, or is told to end.
    Runs,
    /// The process was killed, for a reason that is logged elsewhere.
    Killed,
    /// The process has died by itself, and its context waits for a successor; how it ended is not known yet.
    Gone,
    /// The process has died by itself, in the way that this text says.
    Ended(String),
}

/// The messages that a worker was sent since it was first asked for a checkpoint and has not executed. The bounds on waiting messages hold for them.
#[derive(Debug)]
pub(super) struct Kept {
    progress: Arc<Progress>,
    /// The number of the first message that may be kept here, and of the last that was sent and that the worker executes in its turn.
    first: u32,
    last: u32,
    /// The messages, and the number of each.
    messages: Outbox<ToWorker>,
    numbers: VecDeque<u32>,
}

impl Kept {
    /// Forgets the messages that the worker has executed.
    fn trim(&mut self, backlogs: &mut Backlogs, owner: Owner) {
        let executed = self.progress.messages();
        while self.numbers.front().is_some_and(|number| is_reached(executed, *number)) {
            self.numbers.pop_front();
            self.messages.forget_first(&mut backlogs.of(owner));
        }
    }

    /// Returns whether all messages that the worker has not executed are kept.
    fn is_complete(&self) -> bool {
        is_reached(self.progress.messages(), self.first.wrapping_sub(1))
    }
}

/// Returns whether `number` equals `other` or follows it; both wrap.
fn is_reached(number: u32, other: u32) -> bool {
    number.wrapping_sub(other) < 1 << 31
}

impl Worker {
    /// Returns whether the worker's process has died by itself, so that its context waits for a successor.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.life, Life::Gone | Life::Ended(_))
    }

    /// Returns whether the worker counts as dead, but the end of its process has not been reported.
    pub(super) fn has_not_ended(&self) -> bool {
        matches!(self.life, Life::Gone)
    }

    /// Keeps a message that the worker is about to be sent, if a successor may need it.
    pub(super) fn keep(&mut self, message: &ToWorker, fd: Option<BorrowedFd<'_>>, backlogs: &mut Backlogs) {
        let (owner, number) = (self.owner(), self.sent.wrapping_add(1));
        let Some(kept) = self.kept.as_mut().filter(|_| !message.is_answer()) else { return };
        if !needs_driver(message) {
            if matches!(message, ToWorker::DetachResource { .. }) {
                kept.last = number;
            }
            return;
        }
        kept.last = number;
        kept.trim(backlogs, owner);
        // While messages wait for a worker that does not read, none is kept here: each message would count twice.
        let is_kept = self.outbox.is_empty()
            && kept.messages.keep(message.clone(), fd, &mut backlogs.of(owner)).is_ok();
        match is_kept {
            true => kept.numbers.push_back(number),
            false => self.keep_no_more(backlogs, owner),
        }
    }

    /// Forgets the kept messages, and keeps no more. They counted for this owner.
    pub(super) fn keep_no_more(&mut self, backlogs: &mut Backlogs, owner: Owner) {
        if let Some(mut kept) = self.kept.take() {
            kept.messages.give_back(&mut backlogs.of(owner));
        }
    }
}

impl Workers {
    /// Asks a worker for a checkpoint of this number in a file, and to keep a journal from then on if `journal` is given. `progress` says how many
    /// messages the worker has executed.
    ///
    /// # Errors
    ///
    /// The name of the limit for which the worker is killed.
    pub(in crate::serve) fn ask_for_checkpoint(
        &mut self,
        ctx_id: ContextId,
        progress: Arc<Progress>,
        (number, file, journal): (u32, BorrowedFd<'_>, Option<BorrowedFd<'_>>),
    ) -> Result<(), &'static str> {
        let Some(worker) = self.running.get_mut(&ctx_id) else { return Ok(()) };
        if journal.is_some() {
            worker.post(&self.epoll, &mut self.backlogs, ToWorker::KeepJournal, journal)?;
        }
        let sent = worker.sent.wrapping_add(1);
        let (messages, numbers) = Default::default();
        worker.kept.get_or_insert(Kept { progress, first: sent, last: sent, messages, numbers });
        worker.post(&self.epoll, &mut self.backlogs, ToWorker::WriteCheckpoint { number }, Some(file))
    }

    /// Returns whether all messages that a context's worker has not executed are kept, and no work of its context is in the driver.
    ///
    /// # Errors
    ///
    /// The reason why a successor could not go on.
    pub(in crate::serve) fn may_be_followed(&self, ctx_id: ContextId) -> Result<(), &'static str> {
        let worker = self.running.get(&ctx_id).filter(|worker| matches!(worker.life, Life::Runs));
        let kept = worker.and_then(|worker| worker.kept.as_ref()).filter(|kept| kept.is_complete());
        match kept {
            None => Err("it has no checkpoint, or its worker has not read what it was sent"),
            Some(kept) if !kept.progress.is_idle() => Err("work of its program was in the driver"),
            Some(_) => Ok(()),
        }
    }

    /// Returns whether the messages that a context's worker has not executed are kept.
    pub(in crate::serve) fn keeps(&self, ctx_id: ContextId) -> bool {
        self.running.get(&ctx_id).is_some_and(|worker| worker.kept.is_some())
    }

    /// Returns whether a context's worker has executed all messages that it was sent, if they are kept.
    pub(in crate::serve) fn has_executed_all(&self, ctx_id: ContextId) -> bool {
        let kept = self.running.get(&ctx_id).and_then(|worker| worker.kept.as_ref());
        kept.is_some_and(|kept| is_reached(kept.progress.messages(), kept.last))
    }

    /// Forgets the messages that a context's dead worker has executed. Returns the fences of those that it has not executed, which are kept.
    pub(in crate::serve) fn kept_fences(&mut self, ctx_id: ContextId) -> Vec<Fence> {
        let Some(worker) = self.running.get_mut(&ctx_id) else { return Vec::new() };
        let owner = worker.owner();
        let Some(kept) = &mut worker.kept else { return Vec::new() };
        kept.trim(&mut self.backlogs, owner);
        let fence = |message: &ToWorker| match message {
            ToWorker::Submit { fence, .. } => *fence,
            _ => None,
        };
        kept.messages.waiting().filter_map(|(message, _)| fence(message)).collect()
    }

    /// Returns whether a context's worker has died by itself, and the context waits for a successor.
    pub(in crate::serve) fn is_gone(&self, ctx_id: ContextId) -> bool {
        self.running.get(&ctx_id).is_some_and(Worker::is_gone)
    }

    /// A worker has died by itself, and its successor starts: new messages for the context wait, after those that are kept ([`Self::kept_fences`]).
    pub(in crate::serve) fn is_recovered(&mut self, ctx_id: ContextId) {
        let (Some(successor), Some(worker)) =
            (self.successors.get_mut(&ctx_id), self.running.get_mut(&ctx_id))
        else {
            return;
        };
        worker.life = Life::Gone;
        let _ = readiness::unwatch(&self.epoll, &worker.channel);
        let owner = worker.owner();
        worker.outbox.give_back(&mut self.backlogs.of(owner));
        let kept = worker.kept.take().map(|kept| kept.messages);
        successor.follows_dead(kept.unwrap_or_default());
    }

    /// Returns how the worker of a context that waits for a successor ended, as far as that is known.
    pub(in crate::serve) fn how_it_ended(&self, ctx_id: ContextId) -> String {
        match self.running.get(&ctx_id).map(|worker| &worker.life) {
            Some(Life::Ended(how)) => how.clone(),
            _ => "its worker ended".to_owned(),
        }
    }

    /// Takes the numbers of workers of which nothing is left, and which [`Self::reap`] could not report.
    pub(in crate::serve) fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the number of the last message that a worker was sent.
    #[cfg(test)]
    pub(in crate::serve) fn sent(&self, ctx_id: ContextId) -> u32 {
        self.running[&ctx_id].sent
    }

    /// Stops listening to a worker, as if the system had taken its channel away.
    #[cfg(test)]
    pub(in crate::serve) fn is_heard_no_more(&self, ctx_id: ContextId) {
        readiness::unwatch(&self.epoll, &self.running[&ctx_id].channel).unwrap();
    }

    /// Returns the life of a worker that has died by itself, and whose context waits for a successor.
    pub(super) fn life_of_gone(&mut self, serial: u32) -> Option<&mut Life> {
        let ctx_id = self.contexts.get(&serial)?;
        let worker = self.running.get_mut(ctx_id)?;
        (worker.serial == serial && worker.is_gone()).then_some(&mut worker.life)
    }
}
