//! The upgrade to another program while VMs run: `passing` has the pieces of the passed state, `rehearsal` tries the program. This module knows no
//! VMs: `vms::succession` carries the upgrade out, `vms::state` is the whole state, which `vms::upgrade` writes and resumes.
//!
//! The broker executes the new program in its own place, so it keeps its PID and its children, and systemd notices nothing. Before that, the new
//! program, run as a child, has read a state like the one that it gets and has said that it understands this state. Any fault of the new program is
//! an answer to the operator who asked. The broker then waits until no start and no reading of its file is under way, which takes a moment. Device
//! processes, workers and guests go on meanwhile: their messages wait in their sockets, and submissions that were granted run.

#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzzing;
pub(super) mod passing;
pub(super) mod rehearsal;

use rehearsal::{Program, Rehearsal};
use sched::Nanos;

/// An upgrade that is under way.
#[derive(Debug)]
pub(super) struct Upgrading<P> {
    /// The operator's connection.
    pub(super) peer: P,
    pub(super) stage: Stage,
    /// The time at which the operator is told again that the upgrade goes on.
    pub(super) tell_at: Nanos,
}

/// The stage of an upgrade.
#[derive(Debug)]
pub(super) enum Stage {
    /// The new program reads the state, until this time.
    Rehearses(Rehearsal, Nanos),
    /// The broker waits, until this time, for its own work to end: this program can then take over.
    Rests(Program, Nanos),
}
