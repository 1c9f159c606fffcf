//! The successors of workers: processes that are to take over the contexts of others (`super::super::handover` says when).
//!
//! From the moment at which a worker is told to hand over until it is known which worker serves the context, everything for the context is held back
//! here, under the same bounds as what waits for a worker that does not read. When a bound is reached, the hand-over is called off, and the
//! context loses nothing.

use super::{Leave, SwappedOut, Worker, Workers};
use crate::ipc::{Channel, Outbox, Placement, ToWorker};
use protocol::ids::ContextId;
use readiness::{self, Events};
use rustix::event::PollFlags;
use shm::StatusPage;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// High bit of the epoll values that belong to what workers hand over; the low 32 are a successor's serial number.
pub(in crate::serve) const HANDS_OVER_TOKEN: u64 = 1 << 34;

/// A successor.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) worker: Worker,
    /// The page that it shares with us.
    page: StatusPage,
    /// The successor has been shown what the context sees, and is shown what comes.
    is_shown: bool,
    /// The socket between the two: the end that the worker is given each time it is told to hand over, until it has, and the end that the
    /// successor is given as soon as the worker has begun to write.
    writes: Option<OwnedFd>,
    reads: Option<OwnedFd>,
    /// The worker has been told to hand over: what is for the context waits in `held`, which counts for the worker.
    holds_back: bool,
    held: Outbox<ToWorker>,
    /// The worker has handed over: nothing that it says counts.
    has_handed_over: bool,
}

impl Successor {
    /// The predecessor is dead: what was `kept` waits for the successor, and what comes from now on.
    pub(super) fn follows_dead(&mut self, mut kept: Outbox<ToWorker>) {
        self.held.append(&mut kept);
        (self.holds_back, self.has_handed_over) = (true, true);
    }
}

impl Workers {
    /// Has the successor of a context's worker started, on these GPUs and with the same gate, but for the `pages` of GPUs that the context
    /// comes to; its submissions may run for so long. It has no driver if the context is to be `swapped_out`. [`Workers::reap`] answers its
    /// `number`.
    ///
    /// # Errors
    ///
    /// The context has no worker, or the system refuses.
    pub(in crate::serve) fn start_successor(
        &mut self,
        ctx_id: ContextId,
        number: u64,
        limit: Duration,
        (placement, pages): (Placement, BTreeMap<u8, OwnedFd>),
        swapped_out: Option<SwappedOut>,
    ) -> io::Result<()> {
        self.end_successor(ctx_id, false);
        let worker = self.running.get(&ctx_id).ok_or(io::ErrorKind::NotFound)?;
        let name = worker.name.clone();
        let gate = worker.gate.as_ref().map(|gate| gate.again(pages)).transpose()?;
        let (page, file) = StatusPage::create()?;
        // It submits what builds its context up, and goes on before it is looked at.
        page.set_limit(limit);
        let worker = self.launch(ctx_id, name, number, file.as_fd(), (placement, gate), swapped_out)?;
        let successor = Successor {
            worker,
            page,
            is_shown: false,
            writes: None,
            reads: None,
            holds_back: false,
            held: Outbox::default(),
            has_handed_over: false,
        };
        self.successors.insert(ctx_id, successor);
        Ok(())
    }

    /// Returns whether a context's worker has a successor.
    pub(in crate::serve) fn has_successor(&self, ctx_id: ContextId) -> bool {
        self.successors.contains_key(&ctx_id)
    }

    /// The number of a successor, as it was given at its start.
    pub(in crate::serve) fn successor_number(&self, ctx_id: ContextId) -> Option<u64> {
        self.successors.get(&ctx_id).map(|successor| successor.worker.number)
    }

    /// Returns whether what is for a context is held back.
    pub(in crate::serve) fn holds_back(&self, ctx_id: ContextId) -> bool {
        self.successors.get(&ctx_id).is_some_and(|successor| successor.holds_back)
    }

    /// Returns whether a context's worker has handed over, so that nothing of it counts.
    pub(in crate::serve) fn rests(&self, ctx_id: ContextId) -> bool {
        self.successors.get(&ctx_id).is_some_and(|successor| successor.has_handed_over)
    }

    /// Takes the hand-overs that were called off here, and why.
    pub(in crate::serve) fn take_called_off(&mut self) -> Vec<(ContextId, String)> {
        std::mem::take(&mut self.called_off)
    }

    /// Keeps a message back if the context's messages are; gives it back if it is to be sent. What answers the worker is.
    pub(super) fn hold_back(
        &mut self,
        ctx_id: ContextId,
        message: ToWorker,
        fd: Option<BorrowedFd<'_>>,
    ) -> Option<ToWorker> {
        let is_answer = message.is_answer();
        let Some(successor) = self.successors.get_mut(&ctx_id) else {
            return if is_answer { Some(message) } else { self.wait_for_driver(ctx_id, message, fd) };
        };
        let Some(worker) = self.running.get(&ctx_id) else { return Some(message) };
        if !successor.holds_back || is_answer {
            return Some(message);
        }
        if successor.worker.swapped_out.is_some_and(|it| !it.is_forced) && needs_driver(&message) {
            self.called_off.push((ctx_id, "its program goes on".into()));
            self.call_off(ctx_id, false);
            return Some(message);
        }
        let kept = successor.held.keep(message.clone(), fd, &mut self.backlogs.of(worker.owner()));
        let Err(limit) = kept else { return None };
        self.called_off.push((ctx_id, backlog_reached(limit)));
        self.call_off(ctx_id, false);
        Some(message)
    }

    /// Keeps a message until the context has a worker with a driver, if it is swapped out and has none that could do it. Gives it back if it is to
    /// be sent.
    fn wait_for_driver(
        &mut self,
        ctx_id: ContextId,
        message: ToWorker,
        fd: Option<BorrowedFd<'_>>,
    ) -> Option<ToWorker> {
        let worker = self.running.get_mut(&ctx_id).filter(|worker| worker.swapped_out.is_some());
        let Some(worker) = worker.filter(|_| needs_driver(&message)) else { return Some(message) };
        let mut bound = self.backlogs.of(worker.owner());
        match worker.held.keep(message, fd, &mut bound) {
            Ok(()) => self.awaited.push(ctx_id),
            Err(limit) => {
                log::warn!(context = ctx_id.0, program = worker.name.as_str(); "context {ctx_id} is lost: limit {limit} reached, its worker is killed");
                worker.kill();
            }
        }
        None
    }

    /// Has a successor get all that comes for a context that was swapped out, and what has waited for a driver.
    pub(in crate::serve) fn swaps_in(&mut self, ctx_id: ContextId) {
        if let (Some(successor), Some(worker)) =
            (self.successors.get_mut(&ctx_id), self.running.get_mut(&ctx_id))
        {
            successor.holds_back = true;
            successor.held.append(&mut worker.held);
        }
    }

    /// Sends a message about a resource to a context's worker, and to a successor that was shown the others.
    ///
    /// # Errors
    ///
    /// As those of [`Workers::send`].
    pub(in crate::serve) fn show(
        &mut self,
        ctx_id: ContextId,
        message: &ToWorker,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), &'static str> {
        let sees = |successor: &Successor| successor.is_shown && !successor.holds_back;
        if self.successors.get(&ctx_id).is_some_and(sees) {
            self.send_to_successor(ctx_id, message.clone(), fd);
        }
        self.send(ctx_id, message.clone(), fd)
    }

    /// Sends a successor a message. One that does not read is ended, and with it the hand-over.
    pub(in crate::serve) fn send_to_successor(
        &mut self,
        ctx_id: ContextId,
        message: ToWorker,
        fd: Option<BorrowedFd<'_>>,
    ) {
        let Some(successor) = self.successors.get_mut(&ctx_id) else { return };
        if let Err(limit) = successor.worker.post(&self.epoll, &mut self.backlogs, message, fd) {
            self.called_off.push((ctx_id, backlog_reached(limit)));
            self.call_off(ctx_id, false);
        }
    }

    /// A successor is shown from now on what its context's worker is.
    pub(in crate::serve) fn is_shown(&mut self, ctx_id: ContextId) {
        if let Some(successor) = self.successors.get_mut(&ctx_id) {
            successor.is_shown = true;
        }
    }

    /// Has a successor make what it can, while the context goes on: the worker writes it down, beside what the successor has made already if it
    /// `goes_on`, and with memory if the successor `is_at_home`.
    ///
    /// # Errors
    ///
    /// No descriptor is left, or the worker's limit is reached for which it was killed.
    pub(in crate::serve) fn prepare(
        &mut self,
        ctx_id: ContextId,
        goes_on: bool,
        is_at_home: bool,
    ) -> Result<(), String> {
        let Some(worker) = self.running.get_mut(&ctx_id) else { return Err("the context has ended".into()) };
        let (writes, reads) = Channel::pair().map_err(|error| error.to_string())?;
        let (writes, reads) = (writes.into_socket(), reads.into_socket());
        let message = ToWorker::WritePrelude { goes_on, is_at_home };
        worker.post(&self.epoll, &mut self.backlogs, message, Some(writes.as_fd()))?;
        self.send_to_successor(ctx_id, ToWorker::BuildPrelude, Some(reads.as_fd()));
        Ok(())
    }

    /// Tells a context's worker to hand over, with copies of its driver's memory or the memory itself, beside the prelude if the successor has one, and keeps
    /// back what comes for the context. Under [`HANDS_OVER_TOKEN`] is heard that it writes.
    ///
    /// # Errors
    ///
    /// No descriptor is left, or the worker's limit is reached for which it was killed.
    pub(in crate::serve) fn hand_over(
        &mut self,
        ctx_id: ContextId,
        copies: bool,
        has_prelude: bool,
    ) -> Result<(), String> {
        let (Some(successor), Some(worker)) =
            (self.successors.get_mut(&ctx_id), self.running.get_mut(&ctx_id))
        else {
            return Err("the context has ended".into());
        };
        if successor.writes.is_none() {
            let (writes, reads) = Channel::pair().map_err(|error| error.to_string())?;
            let (writes, reads) = (writes.into_socket(), reads.into_socket());
            let token = HANDS_OVER_TOKEN | u64::from(successor.worker.serial);
            let watched = readiness::watch(&self.epoll, &reads, token, Events::EPOLLIN);
            watched.map_err(|error| error.to_string())?;
            (successor.writes, successor.reads) = (Some(writes), Some(reads));
        }
        let writes = successor.writes.as_ref().map(AsFd::as_fd);
        // What is held back from now on is not kept, so a checkpoint would not be all.
        worker.keep_no_more(&mut self.backlogs, worker.owner());
        let message = ToWorker::HandOver { copies, goes_on: has_prelude };
        worker.post(&self.epoll, &mut self.backlogs, message, writes)?;
        (successor.holds_back, worker.owes_answer) = (true, true);
        Ok(())
    }

    /// Has a successor take over what its predecessor writes, if it was not told yet. Returns whether it was not.
    pub(in crate::serve) fn take_over(&mut self, ctx_id: ContextId) -> bool {
        let Some(successor) = self.successors.get_mut(&ctx_id).filter(|successor| successor.holds_back)
        else {
            return false;
        };
        let Some(reads) = successor.reads.take() else { return false };
        let _ = readiness::unwatch(&self.epoll, &reads);
        self.send_to_successor(ctx_id, ToWorker::TakeOver, Some(reads.as_fd()));
        true
    }

    /// Returns whether a worker has written something that its successor was not told to read yet.
    pub(in crate::serve) fn has_written(&self, ctx_id: ContextId) -> bool {
        let reads = self.successors.get(&ctx_id).and_then(|successor| successor.reads.as_ref());
        let ready = reads.map(|reads| readiness::within(reads, PollFlags::IN, Duration::ZERO));
        matches!(ready, Some(Ok(events)) if events.contains(PollFlags::IN))
    }

    /// Has a successor take over what its dead predecessor has written, which comes from this socket.
    pub(in crate::serve) fn take_over_checkpoint(&mut self, ctx_id: ContextId, reads: BorrowedFd<'_>) {
        // The predecessor may have closed its channel and go on. Not sooner: the log is to tell by what it has died.
        if let Some(worker) = self.running.get(&ctx_id).filter(|worker| worker.has_not_ended()) {
            worker.process.kill();
        }
        self.send_to_successor(ctx_id, ToWorker::TakeOver, Some(reads));
    }

    /// A worker has answered that it hands over or stays; returns whether it was asked.
    pub(in crate::serve) fn answers(&mut self, ctx_id: ContextId) -> bool {
        let worker = self.running.get_mut(&ctx_id);
        worker.is_some_and(|worker| std::mem::take(&mut worker.owes_answer))
    }

    /// Returns whether a worker has not answered yet whether it hands over.
    pub(in crate::serve) fn owes_answer(&self, ctx_id: ContextId) -> bool {
        self.running.get(&ctx_id).is_some_and(|worker| worker.owes_answer)
    }

    /// A worker has handed over: only the successor has to read now, and to hear the end of what there is.
    pub(in crate::serve) fn handed_over(&mut self, ctx_id: ContextId) {
        if let Some(successor) = self.successors.get_mut(&ctx_id) {
            successor.has_handed_over = true;
            successor.writes = None;
        }
    }

    /// A worker has gone on, for now: it gets what was held back, and its successor what of that is about resources.
    pub(in crate::serve) fn resume(&mut self, ctx_id: ContextId) {
        let Some(successor) = self.successors.get_mut(&ctx_id) else { return };
        successor.holds_back = false;
        let mut held = std::mem::take(&mut successor.held);
        for (message, fd) in held.waiting().filter(|(message, _)| !needs_driver(message)) {
            self.send_to_successor(ctx_id, message.clone(), fd);
        }
        let Some(worker) = self.running.get_mut(&ctx_id) else { return };
        worker.outbox.append(&mut held);
        worker.flush(&self.epoll, &mut self.backlogs);
    }

    /// Returns whether a successor has read all that it was sent.
    pub(in crate::serve) fn has_read_all(&self, ctx_id: ContextId) -> bool {
        self.successors.get(&ctx_id).is_some_and(|successor| successor.worker.outbox.is_empty())
    }

    /// A successor has the context: it becomes its worker, the other is killed, and what was held back is sent. Returns the page of the
    /// new worker. [`Workers::reap`] answers the successor's number for the old one.
    pub(in crate::serve) fn succeed(&mut self, ctx_id: ContextId) -> Option<StatusPage> {
        let Successor { worker: mut new, mut held, page, .. } = self.successors.remove(&ctx_id)?;
        let mut old = self.running.remove(&ctx_id)?;
        std::mem::swap(&mut old.number, &mut new.number);
        // What waited for it counts for the context, as what was held back does.
        old.outbox.give_back(&mut self.backlogs.of(new.owner()));
        old.keep_no_more(&mut self.backlogs, new.owner());
        old.kill();
        self.put_away(ctx_id, old, Leave::Known);
        // There is room: it has read all.
        let _ = new.post(&self.epoll, &mut self.backlogs, ToWorker::GoOn, None);
        let mut waits = match new.swapped_out {
            Some(_) => held.take_if(needs_driver),
            None => Outbox::default(),
        };
        if !waits.is_empty() {
            self.awaited.push(ctx_id);
        }
        new.held.append(&mut waits);
        new.outbox.append(&mut held);
        new.flush(&self.epoll, &mut self.backlogs);
        self.running.insert(ctx_id, new);
        Some(page)
    }

    /// Ends a successor, which [`Workers::reap`] explains if it `has_gone` by itself. The worker goes on, and gets what was held back. One that
    /// has not answered yet is told as well, before all else.
    pub(in crate::serve) fn call_off(&mut self, ctx_id: ContextId, has_gone: bool) {
        let held = self.end_successor(ctx_id, has_gone);
        let (Some(mut held), Some(worker)) = (held, self.running.get_mut(&ctx_id)) else { return };
        if let Err(limit) = worker.post(&self.epoll, &mut self.backlogs, ToWorker::GoOn, None) {
            log::warn!(context = ctx_id.0, program = worker.name.as_str(); "context {ctx_id} is lost: limit {limit} reached, its worker is killed");
        }
        worker.outbox.append(&mut held);
        worker.flush(&self.epoll, &mut self.backlogs);
    }

    /// Ends a successor, if there is one. Returns what was held back, if anything was to be.
    pub(super) fn end_successor(&mut self, ctx_id: ContextId, has_gone: bool) -> Option<Outbox<ToWorker>> {
        let Successor { mut worker, reads, holds_back, held, .. } = self.successors.remove(&ctx_id)?;
        if let Some(reads) = &reads {
            let _ = readiness::unwatch(&self.epoll, reads);
        }
        if !has_gone {
            worker.kill();
        }
        self.put_away(ctx_id, worker, Leave::Successor);
        holds_back.then_some(held)
    }
}

/// Returns whether a message is for the context's driver, and not about resources, of which each of its workers has to hear.
pub(super) fn needs_driver(message: &ToWorker) -> bool {
    !matches!(message, ToWorker::AttachResource { .. } | ToWorker::DetachResource { .. })
}

fn backlog_reached(limit: &str) -> String {
    format!("limit {limit} reached by messages that wait for the context meanwhile")
}
