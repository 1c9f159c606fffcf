//! Waits for submissions that are pending: the objects that they use are not reset, freed or destroyed before they have completed.
//!
//! A guest sees the completion of its work in memory that the work itself writes, of which the driver reports nothing; a thread looks at the
//! markers of submissions when it has to know their end. During such a wait, a fence or a pool may be locked, but no lock that
//! [`crate::context::ranked`] ranks behind fences.

use super::call::Call;
use crate::context::cancel::{Interrupted, Stop};
use crate::context::error::Fault;
use crate::logical::device::Device;
use crate::logical::submitted::Submitted;
use crate::objects::object::Kind;
use std::time::{Duration, Instant};

/// The time for which a command waits for a submission that uses its object and that has not begun. Programs may learn of a completion some
/// microseconds before the host's fence is signalled; a program that waits for longer has broken valid usage, or we have lost sight of an end.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time between two looks, and between two later on.
const LOOK_EVERY: Duration = Duration::from_micros(50);

const LOOK_SELDOM: Duration = Duration::from_millis(1);

impl Call<'_> {
    /// Waits until the submissions that use the object of `command` have completed: a guest may learn of the completion before the host's fence
    /// is signalled.
    ///
    /// # Errors
    ///
    /// The submissions have not completed: the program has broken valid usage, or the wait was cancelled or interrupted.
    pub(crate) fn await_submitted(
        &self,
        device: &Device,
        submitted: &Submitted,
        command: &'static str,
    ) -> Result<(), Fault> {
        match self.have_completed(device, submitted, command)? {
            true => Ok(()),
            false => Err(Fault::invalid("it is in use by a pending submission")),
        }
    }

    /// Waits until the submissions that use those objects of `ids` which are `meant` have completed, for as long as [`Self::have_completed`] does:
    /// the caller has to find out which objects are still used.
    ///
    /// # Errors
    ///
    /// The wait was interrupted.
    pub(crate) fn have_ended<H: Kind>(
        &self,
        device: &Device,
        ids: &[H],
        meant: impl Fn(&H::State) -> bool,
        command: &'static str,
    ) -> Result<(), Interrupted> {
        let submitted = {
            let objects = self.context.objects.read();
            let objects = ids.iter().filter_map(|id| objects.get(*id).ok());
            let meant = objects.filter(|object| object.get::<H>().is_some_and(&meant));
            meant.fold(Submitted::default(), |all, object| all.and(&object.usage.submitted()))
        };
        self.have_completed(device, &submitted, command).map(drop)
    }

    /// Waits until the submissions that use the object of `command` have completed; returns whether they have. The wait is short if they
    /// cannot even have begun: the program has then broken valid usage. Work that runs may be over already as the program sees it.
    ///
    /// # Errors
    ///
    /// The wait was interrupted.
    pub(crate) fn have_completed(
        &self,
        device: &Device,
        submitted: &Submitted,
        command: &'static str,
    ) -> Result<bool, Interrupted> {
        let (start, mut is_told) = (Instant::now(), false);
        loop {
            if device.completed(submitted) {
                return Ok(true);
            }
            match self.cancel.stop() {
                None => {}
                Some(Stop::Cancelled) => return Ok(false),
                Some(Stop::Interrupted) => return Err(Interrupted),
            }
            if start.elapsed() <= PATIENCE {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            let is_blocked = device.is_blocked(submitted);
            if is_blocked || !is_told {
                self.context.env.allowance.overdue(command, is_blocked);
                is_told = true;
            }
            if is_blocked {
                self.context.journal.breaks("a command was refused, as its object is in use");
                return Ok(false);
            }
            std::thread::sleep(LOOK_SELDOM);
        }
    }
}

#[cfg(test)]
#[path = "interruption_tests.rs"]
mod tests;
