//! The workers of contexts that are saved into a file or loaded from one (`super::super::device_state`): this process stands in for a worker's
//! successor, or for its predecessor.

use super::crashes::Life;
use super::{Gate, Process, Worker, Workers};
use crate::ipc::{Channel, Outbox, Placement, ToWorker};
use protocol::ids::ContextId;
use rustix::event::PollFlags;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

impl Workers {
    /// Tells a context's worker to write everything into this socket as for a successor with another driver, and to rest until [`Self::goes_on`].
    ///
    /// # Errors
    ///
    /// The limit that the worker has reached; the device process kills it.
    pub(in crate::serve) fn save(
        &mut self,
        ctx_id: ContextId,
        writes: BorrowedFd<'_>,
    ) -> Result<(), &'static str> {
        let Some(worker) = self.running.get_mut(&ctx_id) else { return Ok(()) };
        worker.keep_no_more(&mut self.backlogs, worker.owner());
        let message = ToWorker::HandOver { copies: true, goes_on: false };
        worker.post(&self.epoll, &mut self.backlogs, message, Some(writes))?;
        worker.owes_answer = true;
        Ok(())
    }

    /// Has a worker go on that was told to write everything, whether it has answered or not.
    ///
    /// # Errors
    ///
    /// The limit that the worker has reached; the device process kills it.
    pub(in crate::serve) fn goes_on(&mut self, ctx_id: ContextId) -> Result<(), &'static str> {
        match self.running.get_mut(&ctx_id) {
            Some(worker) => worker.post(&self.epoll, &mut self.backlogs, ToWorker::GoOn, None),
            None => Ok(()),
        }
    }

    /// Returns the serial number of a context's worker if it has sent a message that was not received.
    pub(in crate::serve) fn has_sent(&self, ctx_id: ContextId) -> Option<u32> {
        let worker = self.running.get(&ctx_id)?;
        let ready = readiness::within(&worker.channel, PollFlags::IN, Duration::ZERO);
        matches!(ready, Ok(events) if events.contains(PollFlags::IN)).then_some(worker.serial)
    }

    /// Notes a context that was loaded as if its worker had died: its successor takes over what was written down. The device knows the context's worker
    /// by this number.
    pub(in crate::serve) fn is_loaded(
        &mut self,
        ctx_id: ContextId,
        (name, number): (String, u64),
        page: OwnedFd,
        (placement, gate): (Placement, Option<Gate>),
    ) -> io::Result<()> {
        let (channel, _) = Channel::pair()?;
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        let process = Process { launcher: Arc::clone(&self.launcher), serial };
        let mut worker = Worker::new(number, (channel, process), page, name, (placement, gate));
        worker.life = Life::Ended("it was loaded".into());
        self.running.insert(ctx_id, worker);
        Ok(())
    }

    /// The successor of a loaded context has no predecessor: messages for the context wait for it.
    pub(in crate::serve) fn follows_nothing(&mut self, ctx_id: ContextId) {
        if let Some(successor) = self.successors.get_mut(&ctx_id) {
            successor.follows_dead(Outbox::default());
        }
    }

    /// A context that is swapped out is to be swapped in as soon as that is possible.
    pub(in crate::serve) fn is_awaited(&mut self, ctx_id: ContextId) {
        self.awaited.push(ctx_id);
    }

    /// Returns whether workers of contexts that are over are still there.
    pub(in crate::serve) fn are_ending(&self) -> bool {
        !(self.ending.is_empty() && self.ended.is_empty() && self.orphans.is_empty())
    }
}
