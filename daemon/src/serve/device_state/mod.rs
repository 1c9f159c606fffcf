//! The state of the device in a file of the frontend (vhost-user specification, "Migrating back-end state"): everything that the guest's programs
//! have on the GPU, for a VMM that stops a VM and starts it again, on this host or another, as often as it likes.
//!
//! To save, each context comes to rest as for a restart, and its worker writes everything down; but the reader is this process, which puts it into
//! the file ([`saver`]) with the memory that guests map and with the state of the device. Then all contexts go on. To load, this process makes the
//! memory, fills it ([`loader`]), and starts a worker for each context, which takes over what the worker before had written down.
//!
//! ```text
//!   save:  Settles ----> all rest ----> written, and each worker says that it has handed over ----> the contexts go on
//!   load:  the head is read ----> memory is filled ----> a worker takes each context over ----> the frontend may start the queues
//! ```
//!
//! The frontend's bytes are hostile: [`mod@format`] bounds them, and `Device::check` finds any contradiction before the device is touched. The thread waits
//! for the frontend and for workers; the device thread, whose part is in `super::transfers`, waits for neither.

mod blocks;
mod contents;
pub(super) mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzzing;
pub(super) mod link;
pub(super) mod loader;
mod patient_file;
pub(super) mod saver;
#[cfg(test)]
mod state_tests;
pub(super) mod thread;

use self::link::Link;
use self::loader::Memory;
use self::saver::Rest;
use self::thread::Thread;
use crate::transport::Transfer;
use protocol::ids::ContextId;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// The time that workers have to finish exports, checkpoints and their own ends before the device process refuses the transfer.
pub(super) const SETTLE_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks whether it has passed.
const SETTLE_PAUSE: Duration = Duration::from_millis(10);

/// The transfer of the device's state that is under way.
#[derive(Debug, Default)]
pub(super) enum Transferring {
    /// None is.
    #[default]
    None,
    /// The device process waits until no worker exports, writes a checkpoint or ends, and gives the transfer up at this time.
    Settles(Transfer, Instant),
    /// The state is being saved.
    Saves(Saving),
    /// The state is being loaded.
    Loads(Loading),
}

/// A save that is under way.
#[derive(Debug)]
pub(super) struct Saving {
    pub(in crate::serve) thread: Thread,
    /// Takes the rest of the state when all contexts are at rest.
    pub(in crate::serve) rest: Sender<Rest>,
    /// The contexts whose workers were told to write, in the order of their records.
    pub(in crate::serve) contexts: Vec<ContextId>,
    /// The sockets of the workers that have not said yet that they have handed over.
    pub(in crate::serve) writes: FxHashMap<ContextId, OwnedFd>,
    /// The contexts that stay for now, and the time at which their workers are asked again.
    pub(in crate::serve) again: Vec<(ContextId, Instant)>,
    pub(in crate::serve) stage: SaveStage,
    pub(in crate::serve) begun: Instant,
    /// The time at which the device process gives the save up, if the stage has not changed by then.
    pub(in crate::serve) until: Instant,
}

/// The stage of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SaveStage {
    /// The contexts come to rest.
    Rests,
    /// The workers and the thread write.
    Writes,
    /// The file is complete. A worker may not have said yet that it has handed over.
    Written,
}

impl Saving {
    pub(super) fn next_due(&self) -> Instant {
        self.again.iter().map(|(_, at)| *at).fold(self.until, Instant::min)
    }
}

/// A load that is under way.
#[derive(Debug)]
pub(super) struct Loading {
    pub(in crate::serve) thread: Thread,
    pub(in crate::serve) memory: Sender<Memory>,
    pub(in crate::serve) links: Sender<Link>,
    /// The contexts whose workers are not started yet, in the order of their records.
    pub(in crate::serve) to_start: VecDeque<ContextId>,
    /// The contexts that have not been given what was written down, in this order, and those of them whose workers have started.
    pub(in crate::serve) to_read: VecDeque<ContextId>,
    pub(in crate::serve) ready: FxHashSet<ContextId>,
    /// The contexts that have not been taken over.
    pub(in crate::serve) left: FxHashSet<ContextId>,
    /// The thread waits for the socket to the next context's worker.
    pub(in crate::serve) waits: bool,
    /// The file was read to its end.
    pub(in crate::serve) is_read: bool,
    pub(in crate::serve) contexts: usize,
    pub(in crate::serve) begun: Instant,
}

impl Transferring {
    /// Returns whether a transfer is under way: meanwhile requests of the guest wait, and nothing else is handed over.
    pub(super) fn is_under_way(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Returns when the device thread has something to do next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        match self {
            Self::None => None,
            Self::Settles(_, until) => Some((Instant::now() + SETTLE_PAUSE).min(*until)),
            Self::Saves(saving) => Some(saving.next_due()),
            // Its waits are those of hand-overs.
            Self::Loads(_) => None,
        }
    }

    /// Returns the thread, if there is one.
    pub(super) fn thread(&self) -> Option<&Thread> {
        match self {
            Self::None | Self::Settles(..) => None,
            Self::Saves(saving) => Some(&saving.thread),
            Self::Loads(loading) => Some(&loading.thread),
        }
    }
}
