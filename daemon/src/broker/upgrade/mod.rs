//! Another program follows this one while VMs run: `passing` has the pieces of the state that is passed on, `rehearsal` tries the program. Knows no
//! VMs: `vms::succession` does it, `vms::state` is the whole state, and `vms::upgrade` writes it down and goes on from it.
//!
//! The broker executes the new program in its own place, so it keeps its number and its children, and systemd notices nothing. Before that the new
//! program has read a state like the one that it gets, as a child, and has said that it understands it: any fault of it is an answer to the operator
//! that has asked. The broker then waits until it has no start and no reading of its file under way, which takes a moment. Device processes, workers
//! and guests go on meanwhile: their messages wait in their sockets, and submissions that were granted run.

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
    /// The time at which the operator is told again that it goes on.
    pub(super) tell_at: Nanos,
}

/// The stage of an upgrade.
#[derive(Debug)]
pub(super) enum Stage {
    /// The new program reads the state, until this time.
    Rehearses(Rehearsal, Nanos),
    /// This program can take over when nothing of the broker's own is under way, until this time.
    Rests(Program, Nanos),
}
