//! The successors of workers: processes that are to take over the contexts of other workers (`super::super::handover` says when).
//!
//! From the moment at which a worker is told to hand over until it is known which worker serves the context, this module holds back all messages
//! for the context, under the same bounds as messages that wait for a worker that does not read. When a bound is reached, the hand-over is called
//! off, and the context loses nothing.

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

/// High bit of the epoll values of the sockets over which workers hand over; the low 32 bits are a successor's serial number.
pub(in crate::serve) const HANDS_OVER_TOKEN: u64 = 1 << 34;

/// A successor.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) worker: Worker,
    /// The status page that the successor shares with this process.
    page: StatusPage,
    /// The successor has been shown the context's resources, and is shown each later one.
    is_shown: bool,
    /// The socket between worker and successor: the end that the worker is given each time it is told to hand over, until it has handed over, and
    /// the end that the successor is given as soon as the worker has begun to write.
    writes: Option<OwnedFd>,
    reads: Option<OwnedFd>,
    /// The worker has been told to hand over: messages for the context wait in `held`, which counts for the worker.
    holds_back: bool,
    held: Outbox<ToWorker>,
    /// The worker has handed over: its messages do not count any more.
    has_handed_over: bool,
}

impl Successor {
    /// The predecessor is dead: the `kept` messages wait for the successor, and so do later ones.
    pub(super) fn follows_dead(&mut self, mut kept: Outbox<ToWorker>) {
        self.held.append(&mut kept);
        (self.holds_back, self.has_handed_over) = (true, true);
    }
}

impl Workers {
    /// Has the successor of a context's worker started, on these GPUs and with the same gate, apart from the `pages` of GPUs that the context
    /// comes to; its submissions may run for `limit`. It has no driver if the context is to be `swapped_out`. [`Workers::reap`] returns its
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
        // The successor submits work to build its context up, and goes on before this process first looks at its page.
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

    /// Returns the number of a successor, as it was given at its start.
    pub(in crate::serve) fn successor_number(&self, ctx_id: ContextId) -> Option<u64> {
        self.successors.get(&ctx_id).map(|successor| successor.worker.number)
    }

    /// Returns whether messages for a context are held back.
    pub(in crate::serve) fn holds_back(&self, ctx_id: ContextId) -> bool {
        self.successors.get(&ctx_id).is_some_and(|successor| successor.holds_back)
    }

    /// Returns whether a context's worker has handed over, so that its messages do not count.
    pub(in crate::serve) fn rests(&self, ctx_id: ContextId) -> bool {
        self.successors.get(&ctx_id).is_some_and(|successor| successor.has_handed_over)
    }

    /// Takes the hand-overs that were called off here, with the reasons.
    pub(in crate::serve) fn take_called_off(&mut self) -> Vec<(ContextId, String)> {
        std::mem::take(&mut self.called_off)
    }

    /// Holds a message back if the context's messages are held back. Returns it if it is to be sent, as answers to the worker always are.
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

    /// Keeps a message for the driver until the context has a worker with a driver, if the context is swapped out. Returns the message if it is to
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

    /// Has a successor get all later messages for a context that was swapped out, and those that have waited for a driver.
    pub(in crate::serve) fn swaps_in(&mut self, ctx_id: ContextId) {
        if let (Some(successor), Some(worker)) =
            (self.successors.get_mut(&ctx_id), self.running.get_mut(&ctx_id))
        {
            successor.holds_back = true;
            successor.held.append(&mut worker.held);
        }
    }

    /// Sends a message about a resource to a context's worker, and to a successor that was shown the other resources.
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

    /// Sends a successor a message. Ends a successor that does not read, and with it the hand-over.
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

    /// From now on a successor is shown the same resources as its context's worker.
    pub(in crate::serve) fn is_shown(&mut self, ctx_id: ContextId) {
        if let Some(successor) = self.successors.get_mut(&ctx_id) {
            successor.is_shown = true;
        }
    }

    /// Has a successor build a part of the prelude while the context goes on. The worker writes that part down: if it `goes_on`, without what the
    /// successor has built already; and with memory if the successor `is_at_home`.
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

    /// Tells a context's worker to hand over, with copies of its driver's memory or the memory itself, and without the prelude if the successor has
    /// built it. Holds later messages for the context back. Epoll reports under [`HANDS_OVER_TOKEN`] that the worker writes.
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
        // Messages that are held back from now on are not kept, so a checkpoint would be incomplete.
        worker.keep_no_more(&mut self.backlogs, worker.owner());
        let message = ToWorker::HandOver { copies, goes_on: has_prelude };
        worker.post(&self.epoll, &mut self.backlogs, message, writes)?;
        (successor.holds_back, worker.owes_answer) = (true, true);
        Ok(())
    }

    /// Has a successor take over what its predecessor writes, unless it was told already. Returns whether it is told now.
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

    /// Returns whether a worker has begun to write, but its successor has not been told to read.
    pub(in crate::serve) fn has_written(&self, ctx_id: ContextId) -> bool {
        let reads = self.successors.get(&ctx_id).and_then(|successor| successor.reads.as_ref());
        let ready = reads.map(|reads| readiness::within(reads, PollFlags::IN, Duration::ZERO));
        matches!(ready, Some(Ok(events)) if events.contains(PollFlags::IN))
    }

    /// Has a successor take over the checkpoint of its dead predecessor, which it reads from this socket.
    pub(in crate::serve) fn take_over_checkpoint(&mut self, ctx_id: ContextId, reads: BorrowedFd<'_>) {
        // The predecessor may have closed its channel and still run. It is not killed sooner, because the log is to tell how it died.
        if let Some(worker) = self.running.get(&ctx_id).filter(|worker| worker.has_not_ended()) {
            worker.process.kill();
        }
        self.send_to_successor(ctx_id, ToWorker::TakeOver, Some(reads));
    }

    /// A worker has answered that it has handed over or stays. Returns whether it was asked.
    pub(in crate::serve) fn answers(&mut self, ctx_id: ContextId) -> bool {
        let worker = self.running.get_mut(&ctx_id);
        worker.is_some_and(|worker| std::mem::take(&mut worker.owes_answer))
    }

    /// Returns whether a worker has not answered yet whether it hands over.
    pub(in crate::serve) fn owes_answer(&self, ctx_id: ContextId) -> bool {
        self.running.get(&ctx_id).is_some_and(|worker| worker.owes_answer)
    }

    /// A worker has handed over: closes this process's writing end, so that the successor reads the end of the stream.
    pub(in crate::serve) fn handed_over(&mut self, ctx_id: ContextId) {
        if let Some(successor) = self.successors.get_mut(&ctx_id) {
            successor.has_handed_over = true;
            successor.writes = None;
        }
    }

    /// A worker has gone on for now: sends it the messages that were held back, and those about resources to its successor too.
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

    /// A successor has the context: it becomes the context's worker, the old worker is killed, and the messages that were held back are sent. Returns
    /// the page of the new worker. [`Workers::reap`] returns the successor's number for the old worker.
    pub(in crate::serve) fn succeed(&mut self, ctx_id: ContextId) -> Option<StatusPage> {
        let Successor { worker: mut new, mut held, page, .. } = self.successors.remove(&ctx_id)?;
        let mut old = self.running.remove(&ctx_id)?;
        std::mem::swap(&mut old.number, &mut new.number);
        // The messages that waited for the old worker count for the context, as those that were held back do.
        old.outbox.give_back(&mut self.backlogs.of(new.owner()));
        old.keep_no_more(&mut self.backlogs, new.owner());
        old.kill();
        self.put_away(ctx_id, old, Leave::Known);
        // There is room, because the successor has read all messages.
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

    /// Ends a successor; [`Workers::reap`] explains its end if it `has_gone` by itself. A worker that was told to hand over is first told to go on,
    /// even if it has not answered yet, and then gets the messages that were held back.
    pub(in crate::serve) fn call_off(&mut self, ctx_id: ContextId, has_gone: bool) {
        let held = self.end_successor(ctx_id, has_gone);
        let (Some(mut held), Some(worker)) = (held, self.running.get_mut(&ctx_id)) else { return };
        if let Err(limit) = worker.post(&self.epoll, &mut self.backlogs, ToWorker::GoOn, None) {
            log::warn!(context = ctx_id.0, program = worker.name.as_str(); "context {ctx_id} is lost: limit {limit} reached, its worker is killed");
        }
        worker.outbox.append(&mut held);
        worker.flush(&self.epoll, &mut self.backlogs);
    }

    /// Ends a successor, if there is one. Returns the messages that were held back, if messages were to be.
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

/// Returns whether a message is for the context's driver. Messages about resources are not: each worker of the context gets them.
pub(super) fn needs_driver(message: &ToWorker) -> bool {
    !matches!(message, ToWorker::AttachResource { .. } | ToWorker::DetachResource { .. })
}

fn backlog_reached(limit: &str) -> String {
    format!("limit {limit} reached by messages that wait for the context meanwhile")
}
