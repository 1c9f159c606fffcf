//! This file ends contexts on an operator's order or when a submission hangs, also while the device process waits for the frontend to map or unmap.
//!
//! A frontend may be slow, and a hostile one may never answer. While the device process waits for it, it hears the broker, looks for hangs and kills
//! workers; the guest is told when the frontend has answered. A frontend that does not answer for `frontend_timeout` loses the session.

use super::broker::Broker;
use super::effects::World;
use super::hangs::Reached;
use super::logging::event::ContextEvent;
use super::succession::Succession;
use crate::ipc::{Channel, FromBroker, ReceiveError};
use crate::transport::{Asked, SessionError};
use outside::Span;
use protocol::ids::ContextId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Time between two looks at a state without an event.
const LOOK: Duration = Duration::from_millis(50);

/// The time for which this process has waited for the frontend, and its limit.
#[derive(Debug)]
pub(super) struct Patience {
    limit: Duration,
    waited: Duration,
    looked: Instant,
}

impl Patience {
    pub(super) fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, waited: Duration::ZERO, looked: now }
    }

    /// Returns whether the patience is at an end. Time counts only while the queues run, as some frontends answer nothing otherwise. Time in
    /// which this process did not look does not count either, because this process was then stopped itself.
    pub(super) fn is_over(&mut self, now: Instant, counts: bool) -> bool {
        let passed = now.saturating_duration_since(self.looked).min(4 * LOOK);
        self.looked = now;
        self.waited += if counts { passed } else { Duration::ZERO };
        self.waited >= self.limit
    }
}

impl World {
    /// Waits until the frontend has met the request.
    ///
    /// # Errors
    ///
    /// The frontend has not met it; the error says why.
    pub(super) fn answered(&mut self, mut asked: Asked) -> Result<(), SessionError> {
        let mut patience = Patience::new(self.frontend_timeout, Instant::now());
        while !asked.advance()? {
            let Some(session) = self.session.as_ref().filter(|session| !session.has_ended()) else {
                return Err(SessionError::Gone);
            };
            if patience.is_over(Instant::now(), !session.is_stopped()) {
                log::error!(
                    "limit frontend-timeout ({}) reached: the frontend has not answered a request to map or unmap memory, and its session is \
                     ended; raise the limit for a slow frontend",
                    Span(patience.limit)
                );
                session.close();
                return Err(SessionError::Silent(Span(patience.limit)));
            }
            self.look_around(asked.as_fd(), asked.events());
        }
        self.progress.begins();
        Ok(())
    }

    /// Waits a moment for an event of the frontend's descriptor, and does the work that is due.
    pub(super) fn look_around(&mut self, awaited: BorrowedFd<'_>, events: PollFlags) {
        self.progress.waits();
        // A frontend that is halted for a successor could not answer.
        self.call_halt_off();
        let broker = self.broker.as_ref().map(AsFd::as_fd);
        let mut fds: Vec<_> = [PollFd::from_borrowed_fd(awaited, events)]
            .into_iter()
            .chain(broker.as_ref().map(|broker| PollFd::new(broker, PollFlags::IN)))
            .collect();
        let limit = Timespec::try_from(LOOK).ok();
        let ready = poll(&mut fds, limit.as_ref());
        let said = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        if !matches!(ready, Ok(_) | Err(Errno::INTR)) {
            std::thread::sleep(LOOK);
        }
        if said && self.hear_broker().is_err() {
            // The loop hears again that the broker is gone, and ends. This thread then waits for nothing else.
            if let Some(session) = &self.session {
                session.close();
            }
        }
        let now = Instant::now();
        self.kill_due(now);
        self.turns(now);
    }

    /// Carries out the broker's messages, as far as that is possible during the wait. If a broker that is a thread of this process is gone, the VM
    /// goes on as before.
    ///
    /// # Errors
    ///
    /// The broker that has started this process is gone. Without it no submission would be granted any more.
    pub(super) fn hear_broker(&mut self) -> Result<(), ReceiveError> {
        let heard = match self.broker.as_ref().map_or(Ok(None), Broker::hear) {
            Err(error) if self.broker.take_if(|broker| !broker.is_parent).is_some() => {
                log::error!(
                    "operators' commands are answered no more: {error}; restart the daemon when the VM is off"
                );
                None
            }
            heard => heard?,
        };
        let Some((heard, file)) = heard else { return Ok(()) };
        match heard {
            FromBroker::Kill { ctx_id } => self.kill(ctx_id, "an operator ended it"),
            FromBroker::Hung { ctx_id } => self.kill_hung(ctx_id, Reached::Contended),
            // Restarts and swaps begin as soon as the frontend has answered.
            FromBroker::Restart { ctx_id, change } => self.backlog.restarts.push((ctx_id, change)),
            FromBroker::SwapOut { ctx_id } => self.backlog.swaps.push(ctx_id),
            FromBroker::Place { placement } => {
                if let Err(error) = self.workers.place(placement) {
                    log::error!("cannot follow the broker's placement of contexts on GPUs: {error}");
                }
            }
            FromBroker::Room(order) => self.room.limit(order),
            FromBroker::Report => self.backlog.reports = true,
            // The loop begins the succession as soon as it runs.
            FromBroker::HandOn => {
                self.succession = file.map(Channel::from_socket).map_or(Succession::None, Succession::Wanted);
            }
        }
        Ok(())
    }

    /// Kills workers that have run out of time.
    pub(super) fn kill_due(&mut self, now: Instant) {
        self.workers.kill_late(now);
        for (ctx_id, reached) in self.hangs.look(now) {
            self.kill_hung(ctx_id, reached);
        }
    }

    /// Ends a context at once.
    pub(super) fn kill(&mut self, ctx_id: ContextId, why: &str) {
        if self.workers.is_running(ctx_id) {
            self.kill_worker(ctx_id, why.into(), false);
        }
    }

    /// A submission runs too long: its context is lost, and its program gets a strike.
    pub(super) fn kill_hung(&mut self, ctx_id: ContextId, reached: Reached) {
        if self.workers.is_running(ctx_id) {
            let why = self.hangs.killed(ctx_id, reached);
            let program = self.workers.name_of(ctx_id).unwrap_or_default();
            let barred = self.strikes.strike(program, Instant::now());
            let barred = barred.map(|barred| format!("; {barred} (strikes)")).unwrap_or_default();
            self.kill_worker(ctx_id, why + &barred, true);
        }
    }

    fn kill_worker(&mut self, ctx_id: ContextId, why: String, hung: bool) {
        self.log_of(ctx_id, ContextEvent::Lost(&why));
        self.tell_end(ctx_id, Some(why), hung);
        self.workers.kill(ctx_id);
        self.backlog.lost.push(ctx_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_that_counts_and_was_looked_at_is_waited() {
        let begin = Instant::now();
        let mut patience = Patience::new(8 * LOOK, begin);
        assert!((1..100).all(|at| !patience.is_over(begin + at * LOOK, false)), "a stopped device");
        let begin = begin + 99 * LOOK;
        assert!(!patience.is_over(begin + 100 * LOOK, true), "a stopped process");
        let begin = begin + 100 * LOOK;
        assert!((1..4).all(|at| !patience.is_over(begin + at * LOOK, true)));
        assert!(patience.is_over(begin + 4 * LOOK, true));
    }
}
