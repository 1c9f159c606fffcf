//! Transfers of the device's state (vhost-user specification, "Migrating back-end state"): the frontend sends a file, into which the state is written
//! or from which it is read while the queues are stopped, and asks later whether that has worked.
//!
//! The message thread notes the transfer, and waits for its end when the frontend asks. The device thread has it done.

use parking_lot::{Condvar, Mutex};
use std::fs::File;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The state is written into the file.
    Save,
    /// The state is read from the file.
    Load,
}

/// A transfer that the frontend wants.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// The direction.
    pub direction: Direction,
    /// The frontend's file, mostly one end of a pipe: it may block, and it may be anything.
    pub file: File,
}

/// The stage of the transfer.
#[derive(Debug, Default)]
enum Stage {
    /// There is no transfer.
    #[default]
    None,
    /// The device thread has not taken the transfer yet.
    Wanted(Transfer),
    /// The device thread has it done.
    UnderWay,
    /// The transfer is over, and has worked or not.
    Over(bool),
    /// The session is over, and with it each transfer.
    Closed,
}

/// The transfer of a session: one at a time.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    stage: Mutex<Stage>,
    changed: Condvar,
}

impl Transfers {
    /// The frontend wants a transfer. Returns false if another is under way.
    pub(super) fn wants(&self, transfer: Transfer) -> bool {
        let mut stage = self.stage.lock();
        let is_free = matches!(*stage, Stage::None | Stage::Over(_));
        if is_free {
            *stage = Stage::Wanted(transfer);
        }
        is_free
    }

    /// Takes the transfer that the frontend wants, if it wants one: the caller has it done, and calls [`Self::ends`].
    pub(super) fn take(&self) -> Option<Transfer> {
        let mut stage = self.stage.lock();
        match std::mem::take(&mut *stage) {
            Stage::Wanted(transfer) => {
                *stage = Stage::UnderWay;
                Some(transfer)
            }
            other => {
                *stage = other;
                None
            }
        }
    }

    /// The transfer that was taken is over, and has worked or not.
    pub(super) fn ends(&self, has_worked: bool) {
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::UnderWay) {
            *stage = Stage::Over(has_worked);
            self.changed.notify_all();
        }
    }

    /// Waits for the end of the transfer. Returns whether it has worked; a second call, or one without a transfer, returns false.
    pub(super) fn outcome(&self) -> bool {
        let mut stage = self.stage.lock();
        self.changed.wait_while(&mut stage, |stage| matches!(stage, Stage::Wanted(_) | Stage::UnderWay));
        match *stage {
            Stage::Over(has_worked) => {
                *stage = Stage::None;
                has_worked
            }
            _ => false,
        }
    }

    /// The session is over: nothing waits for a transfer any more.
    pub(super) fn close(&self) {
        *self.stage.lock() = Stage::Closed;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer() -> Transfer {
        Transfer { direction: Direction::Save, file: tempfile::tempfile().unwrap() }
    }

    #[test]
    fn one_transfer_at_a_time_is_taken_once_and_its_end_is_told_once() {
        let transfers = Transfers::default();
        assert!(transfers.take().is_none() && !transfers.outcome(), "nothing is wanted");
        for has_worked in [true, false] {
            assert!(transfers.wants(transfer()) && !transfers.wants(transfer()));
            assert!(transfers.take().is_some() && transfers.take().is_none());
            assert!(!transfers.wants(transfer()), "it is under way");
            std::thread::scope(|scope| {
                let asks = scope.spawn(|| transfers.outcome());
                transfers.ends(has_worked);
                assert_eq!(asks.join().unwrap(), has_worked);
            });
            transfers.ends(true);
            assert!(!transfers.outcome(), "it was told already");
        }
    }

    #[test]
    fn nothing_waits_when_the_session_is_over() {
        for is_taken in [true, false] {
            let transfers = Transfers::default();
            assert!(transfers.wants(transfer()));
            let taken = is_taken.then(|| transfers.take());
            std::thread::scope(|scope| {
                let asks = scope.spawn(|| transfers.outcome());
                transfers.close();
                assert!(!asks.join().unwrap());
            });
            transfers.ends(true);
            assert!(!transfers.outcome() && !transfers.wants(transfer()));
            drop(taken);
        }
    }
}
