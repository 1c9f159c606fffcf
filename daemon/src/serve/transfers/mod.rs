//! The device thread's part of transfers of the device's state ([`super::device_state`]).

mod load;
mod save;

use super::device_state::thread::{Report, Thread};
use super::device_state::{SETTLE_PATIENCE, Transferring};
use super::handover::failure::{Failure, Lasts};
use super::logging::event::DeviceEvent;
use super::run::Server;
use crate::transport::{Direction, Transfer};
use outside::Quoted;
use protocol::ids::ContextId;
use std::time::Instant;

impl Server {
    /// Begins the transfer that the frontend wants, if it wants one.
    pub(super) fn transfer_wanted(&mut self) {
        let Some(session) = &self.world.session else { return };
        let Some(transfer) = session.take_transfer() else { return };
        let now = Instant::now();
        self.transferring = Transferring::Settles(transfer, now + SETTLE_PATIENCE);
        self.settles(now);
    }

    /// Begins the transfer once no worker exports memory, writes a checkpoint or ends.
    fn settles(&mut self, now: Instant) {
        let Transferring::Settles(Transfer { direction, .. }, until) = &self.transferring else { return };
        let (direction, until) = (*direction, *until);
        let may_begin = match direction {
            Direction::Save => self.may_save(),
            Direction::Load => self.may_load(),
        };
        match (may_begin, direction) {
            (Ok(()), _) => {
                let Transferring::Settles(Transfer { file, .. }, _) = std::mem::take(&mut self.transferring)
                else {
                    return;
                };
                match direction {
                    Direction::Save => self.begin_save(file, now),
                    Direction::Load => self.begin_load(file),
                }
            }
            (Err(Failure { lasts: Lasts::ForNow, .. }), _) if now < until => {}
            (Err(Failure { reason, .. }), Direction::Save) => self.save_fails(&reason),
            (Err(Failure { reason, .. }), Direction::Load) => {
                self.transfer_ends(&Err(DeviceEvent::LoadRefused(&reason)));
            }
        }
    }

    /// Does the part of a transfer that is due.
    pub(super) fn transfer_due(&mut self, now: Instant) {
        match &self.transferring {
            // A load waits for its thread and for workers only.
            Transferring::None | Transferring::Loads(_) => {}
            Transferring::Settles(..) => self.settles(now),
            Transferring::Saves(_) => self.save_due(now),
        }
    }

    /// The thread of the transfer has something to report.
    pub(super) fn transfer_reports(&mut self) {
        while let Some(report) = self.transferring.thread().and_then(Thread::report) {
            match (report, &self.transferring) {
                (Report::AreAtRest, Transferring::Saves(_)) => self.are_at_rest(),
                (Report::Ended(ended), Transferring::Saves(_)) => self.state_written(ended),
                (Report::Head(head), Transferring::Loads(_)) => self.load_head(*head),
                (Report::Next, Transferring::Loads(_)) => self.load_next(),
                (Report::Ended(ended), Transferring::Loads(_)) => self.state_read(ended),
                _ => {}
            }
        }
    }

    /// Ends the transfer, and tells the frontend as soon as it asks.
    fn transfer_ends(&mut self, outcome: &Result<DeviceEvent<'_>, DeviceEvent<'_>>) {
        self.transferring = Transferring::None;
        let (Ok(event) | Err(event)) = outcome;
        self.world.log(*event);
        if let Some(session) = &self.world.session {
            session.transfer_ends(outcome.is_ok());
        }
    }

    /// Returns a context with the name of its program, for the log.
    fn in_words(&self, ctx_id: ContextId) -> String {
        let name = self.world.workers.name_of(ctx_id).unwrap_or_default();
        format!("context {ctx_id} ({})", Quoted(name))
    }
}
