//! Waits for submissions that are pending: what they use is not reset, freed or destroyed before they have completed.
//!
//! A guest sees the completion of its work in memory that the work itself writes, so the driver does not tell; the markers of submissions are
//! looked at when their end has to be known. A fence or a pool may be locked then, and no lock that [`crate::context::ranked`] has
//! behind fences.

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
    /// Waits until submissions have completed that use what `command` is about: a guest may learn of it before the host's fence is
    /// signalled.
    ///
    /// # Errors
    ///
    /// They have not completed: the program has broken valid usage, or the wait was cancelled or interrupted.
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

    /// Waits until submissions have completed that use those objects of `ids` which are `meant`, for as long as [`Self::have_completed`] does:
    /// what is used for longer is the caller's to find out.
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

    /// Waits until submissions have completed that use what `command` is about; returns whether they have. The wait is not long if they
    /// cannot even have begun: then the program has broken valid usage. Whatever runs may be over for the program already.
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
