//! Workers that die by themselves, and what was sent to them since their checkpoints: a successor gets it.
//!
//! A worker that has executed something since its checkpoint takes the mark away before. So while the mark is there, nothing of what was kept
//! here was executed.

use super::backlogs::Backlogs;
use super::successors::needs_driver;
use super::{Worker, Workers};
use crate::device::Owner;
use crate::ipc::{Outbox, ToWorker};
use protocol::ids::ContextId;
use shm::CheckpointMark;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The life of a worker's process.
#[derive(Debug)]
pub(super) enum Life {
    /// The process runs, or is told to end.
    Runs,
    /// The process was killed, for a reason that is told.
    Killed,
    /// The process has died by itself, and its context waits for a successor; how it ended is not known yet.
    Gone,
    /// The process has died by itself, and how it ended.
    Ended(String),
}

/// The messages that a worker was sent since it was asked for a checkpoint, under the bounds for workers that do not read.
#[derive(Debug)]
pub(super) struct Kept {
    mark: Arc<CheckpointMark>,
    /// The bytes of the checkpoint, once it is written.
    written: Option<u64>,
    messages: Outbox<ToWorker>,
    /// The worker was sent a `DetachResource`, which makes the checkpoint stale and is not kept.
    has_detached: bool,
}

impl Worker {
    /// Returns whether its process has died by itself, so that its context waits for a successor.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.life, Life::Gone | Life::Ended(_))
    }

    /// Returns whether its process is gone, but not known to have ended.
    pub(super) fn has_not_ended(&self) -> bool {
        matches!(self.life, Life::Gone)
    }

    /// Keeps a message that it is about to be sent, if a successor may need it.
    pub(super) fn keep(&mut self, message: &ToWorker, fd: Option<BorrowedFd<'_>>, backlogs: &mut Backlogs) {
        let owner = self.owner();
        let Some(kept) = self.kept.as_mut().filter(|_| !message.is_answer()) else { return };
        if !needs_driver(message) {
            kept.has_detached |= matches!(message, ToWorker::DetachResource { .. });
            return;
        }
        // A worker that does not read has each message counted for it once.
        let is_of_use = self.outbox.is_empty() && (kept.written.is_none() || kept.mark.is_current());
        if !is_of_use || kept.messages.keep(message.clone(), fd, &mut backlogs.of(owner)).is_err() {
            self.keep_no_more(backlogs, owner);
        }
    }

    /// There is no checkpoint for which something would have to be kept. What was counts for this owner.
    pub(super) fn keep_no_more(&mut self, backlogs: &mut Backlogs, owner: Owner) {
        if let Some(mut kept) = self.kept.take() {
            kept.messages.give_back(&mut backlogs.of(owner));
        }
    }
}

impl Workers {
    /// Asks a worker for a checkpoint in a file, whose `mark` says whether it is complete.
    ///
    /// # Errors
    ///
    /// The name of the limit for which the worker is killed.
    pub(in crate::serve) fn ask_for_checkpoint(
        &mut self,
        ctx_id: ContextId,
        mark: Arc<CheckpointMark>,
        file: BorrowedFd<'_>,
    ) -> Result<(), &'static str> {
        let Some(worker) = self.running.get_mut(&ctx_id) else { return Ok(()) };
        worker.keep_no_more(&mut self.backlogs, worker.owner());
        worker.kept = Some(Kept { mark, written: None, messages: Outbox::default(), has_detached: false });
        worker.post(&self.epoll, &mut self.backlogs, ToWorker::WriteCheckpoint, Some(file))
    }

    /// A worker has written a checkpoint of so many bytes, or there is none.
    pub(in crate::serve) fn checkpoint_answered(&mut self, ctx_id: ContextId, written: Option<u64>) {
        let Some(worker) = self.running.get_mut(&ctx_id) else { return };
        match &mut worker.kept {
            Some(kept) if written.is_some() => kept.written = written,
            _ => worker.keep_no_more(&mut self.backlogs, worker.owner()),
        }
    }

    /// Returns the bytes of a context's checkpoint, if nothing was executed since it was written, and all messages sent since are kept.
    pub(in crate::serve) fn complete_checkpoint(&self, ctx_id: ContextId) -> Option<u64> {
        let worker = self.running.get(&ctx_id).filter(|worker| matches!(worker.life, Life::Runs))?;
        let kept = worker.kept.as_ref()?;
        kept.written.filter(|_| kept.mark.is_current())
    }

    /// Returns whether a context's worker has executed all that it was sent, if the mark of its checkpoint is there.
    pub(in crate::serve) fn has_executed_all(&self, ctx_id: ContextId) -> bool {
        let kept = self.running.get(&ctx_id).and_then(|worker| worker.kept.as_ref());
        kept.is_some_and(|kept| kept.messages.is_empty() && !kept.has_detached)
    }

    /// Returns whether a context's worker has died by itself, and the context waits for a successor.
    pub(in crate::serve) fn is_gone(&self, ctx_id: ContextId) -> bool {
        self.running.get(&ctx_id).is_some_and(Worker::is_gone)
    }

    /// A worker has died by itself, and its successor is started: what comes for the context waits, behind what was kept.
    pub(in crate::serve) fn is_recovered(&mut self, ctx_id: ContextId) {
        let (Some(successor), Some(worker)) =
            (self.successors.get_mut(&ctx_id), self.running.get_mut(&ctx_id))
        else {
            return;
        };
        worker.life = Life::Gone;
        let _ = readiness::unwatch(&self.epoll, &worker.channel);
        worker.outbox.give_back(&mut self.backlogs.of(worker.owner()));
        successor.follows_dead(worker.kept.take().map(|kept| kept.messages).unwrap_or_default());
    }

    /// Returns how the worker of a context ended that waits for a successor, as far as that is known.
    pub(in crate::serve) fn how_it_ended(&self, ctx_id: ContextId) -> String {
        match self.running.get(&ctx_id).map(|worker| &worker.life) {
            Some(Life::Ended(how)) => how.clone(),
            _ => "its worker ended".to_owned(),
        }
    }

    /// Takes the numbers of workers of which nothing is left, and of which [`Self::reap`] could not tell.
    pub(in crate::serve) fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended)
    }

    /// Stops listening to a worker, as if the system had taken its channel away.
    #[cfg(test)]
    pub(in crate::serve) fn is_heard_no_more(&self, ctx_id: ContextId) {
        readiness::unwatch(&self.epoll, &self.running[&ctx_id].channel).unwrap();
    }

    /// The life of a worker that has died by itself, and whose context waits for a successor.
    pub(super) fn life_of_gone(&mut self, serial: u32) -> Option<&mut Life> {
        let ctx_id = self.contexts.get(&serial)?;
        let worker = self.running.get_mut(ctx_id)?;
        (worker.serial == serial && worker.is_gone()).then_some(&mut worker.life)
    }
}
