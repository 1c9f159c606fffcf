//! The device thread's wait for events and requests, which follows [`waiting::attention`].

use super::effects::World;
use super::handover::idle::Idle;
use super::handover::restless::Restless;
use super::run::Server;
use crate::transport::{CONTROLQ, QUEUES, Session, Vring};
use readiness::{self, Reported};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waiting::attention::Awaited;
use waiting::spin::{self, Spun};

impl Server {
    /// Waits until there is something to do: an event, a request, or a deadline.
    pub(super) fn wait(&mut self, events: &mut Reported) -> io::Result<()> {
        let begin = Instant::now();
        events.clear();
        let owes = |session: &Session| session.vring(CONTROLQ).owes();
        let awaited = self.attention.awaited(self.world.session.as_ref().is_some_and(owes));
        if self.wait_for(awaited, begin, events)? {
            self.attention.waited(awaited, begin.elapsed());
        }
        Ok(())
    }

    /// Returns whether an event, and not a deadline, ended the wait.
    fn wait_for(&mut self, awaited: Awaited, begin: Instant, events: &mut Reported) -> io::Result<bool> {
        let deadline = self.deadline();
        let left = |now: Instant| deadline.map(|deadline| deadline.saturating_duration_since(now));
        let at_most = |limit: Duration| left(begin).map_or(limit, |left| left.min(limit));
        let patience = self.attention.patience(awaited);
        if self.has_requests() {
            return self.beside_requests(events);
        }
        if self.look(patience.look, events)? {
            return Ok(true);
        }
        if !patience.doze.is_zero() {
            if self.arm(Vring::arm_behind_next) {
                return self.beside_requests(events);
            }
            if events.fetch(&self.epoll, Some(at_most(patience.doze)))? || self.has_requests() {
                return Ok(true);
            }
            self.attention.no_follow_up();
        }
        if self.arm(Vring::arm) {
            return self.beside_requests(events);
        }
        let then = patience.then;
        if !then.sleep.is_zero()
            && (self.doze(at_most(then.sleep), events)? || self.look(then.look, events)?)
        {
            return Ok(true);
        }
        Ok(events.fetch(&self.epoll, left(Instant::now()))? || self.has_requests())
    }

    /// Watches for events and requests, for at most this time. Returns whether there are any.
    fn look(&self, limit: Duration, events: &mut Reported) -> io::Result<bool> {
        if limit.is_zero() {
            return Ok(false);
        }
        let (events, failed) = (RefCell::new(events), Cell::new(None));
        let is_event = || {
            let fetched = events.borrow_mut().fetch(&self.epoll, Some(Duration::ZERO));
            fetched.unwrap_or_else(|error| {
                failed.set(Some(error));
                true
            })
        };
        let seen = spin::within(limit, || self.has_requests() || is_event()) == Spun::Seen;
        failed.take().map_or(Ok(seen), Err)
    }

    /// Sleeps until there are events, for at most this time, which may be shorter than a millisecond. Returns whether there are any.
    fn doze(&self, limit: Duration, events: &mut Reported) -> io::Result<bool> {
        match readiness::within(&self.epoll, PollFlags::IN, limit) {
            Ok(none) if none.is_empty() => Ok(false),
            Err(Errno::INTR) => Ok(false),
            Ok(_) => events.fetch(&self.epoll, Some(Duration::ZERO)),
            Err(error) => Err(error.into()),
        }
    }

    /// There are requests: fetches the events too, without a wait.
    fn beside_requests(&self, events: &mut Reported) -> io::Result<bool> {
        events.fetch(&self.epoll, Some(Duration::ZERO))?;
        Ok(true)
    }

    /// Returns whether there is a request.
    pub(super) fn has_requests(&self) -> bool {
        self.sound_queues().any(|vring| vring.has_requests())
    }

    /// Asks for kicks; returns whether there is a request.
    fn arm(&self, ask: fn(&Vring) -> bool) -> bool {
        self.sound_queues().fold(false, |came, vring| came | ask(vring))
    }

    fn sound_queues(&self) -> impl Iterator<Item = &Arc<Vring>> {
        let is_transferring = self.transferring.is_under_way();
        let queues = (0..QUEUES).filter(move |index| !self.broken[*index] && !is_transferring);
        queues.filter_map(|index| self.world.session.as_ref().map(|session| session.vring(index)))
    }

    /// Returns when there is something to do even if nothing has happened.
    fn deadline(&self) -> Option<Instant> {
        let World { workers, hangs, .. } = &self.world;
        let workers = [workers.next_deadline(), workers.next_late_start(), hangs.next_look()];
        let others = [self.world.next_call(), self.world.listen_at, self.world.told.next_turn()];
        let restless = self.world.restless.as_ref().and_then(Restless::next_due);
        let idle = self.world.idle.as_ref().and_then(Idle::next_due);
        let checkpoints =
            [self.world.checkpoints.next_due(), self.world.alive_at, self.world.room.next_due()];
        let hand_overs = [self.world.handovers.next_due(), restless, idle].into_iter().chain(checkpoints);
        let succession =
            [self.world.succession.next_due(), self.closing.next_due(), self.transferring.next_due()];
        let hand_overs = hand_overs.chain(succession);
        let deadlines = workers.into_iter().chain(others).chain(hand_overs);
        deadlines.flatten().min()
    }
}
