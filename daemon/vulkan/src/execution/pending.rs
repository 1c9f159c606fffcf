//! Waits for submissions that are pending: what they use is not reset, freed or destroyed before they have completed.
//!
//! A guest sees the completion of its work in memory that the work itself writes, so nobody tells; the markers of submissions are
//! looked at when somebody has to know. Lock order: a queue's handle, a fence, pools, the table of objects; submissions last.

use super::call::Call;
use crate::context::error::Fault;
use crate::logical::device::Device;
use crate::logical::submitted::Submitted;
use std::time::{Duration, Instant};

/// The time for which a command waits for a submission that uses its object and that has not begun. Programs may learn of a completion some
/// microseconds before the host's fence is signalled; whoever waits for longer has broken valid usage, or we have lost sight of an end.
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
    /// They have not completed: the program has broken valid usage, or the wait was cancelled.
    pub(crate) fn await_submitted(
        &self,
        device: &Device,
        submitted: &Submitted,
        command: &'static str,
    ) -> Result<(), Fault> {
        match self.have_completed(device, submitted, command) {
            true => Ok(()),
            false => Err(Fault::invalid("it is in use by a pending submission")),
        }
    }

    /// Waits until submissions have completed that use what `command` is about; returns whether they have. The wait is not long if they
    /// cannot even have begun: then the program has broken valid usage. Whatever runs may be over for the program already.
    pub(crate) fn have_completed(
        &self,
        device: &Device,
        submitted: &Submitted,
        command: &'static str,
    ) -> bool {
        let (start, mut is_told) = (Instant::now(), false);
        loop {
            if device.completed(submitted) {
                return true;
            }
            if self.cancel.is_cancelled() {
                return false;
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
                return false;
            }
            std::thread::sleep(LOOK_SELDOM);
        }
    }
}
