//! The configuration file read again: `reader` reads and checks it, `plan` says what follows from it, and this file has what an operator
//! is told. Knows no processes: what follows is done in `vms`. `listener` has the sockets of the broker itself, which are looked after then.

pub(super) mod listener;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod model;
pub(super) mod plan;
#[cfg(test)]
mod plan_tests;
pub(super) mod reader;

use serde::{Deserialize, Serialize};
use std::fmt;

/// The answer to [`Request::Reload`](super::Request::Reload): what became of each VM, by name, and what has to wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// VMs that are new in the file.
    pub added: Vec<String>,
    /// VMs that are not in the file any more.
    pub removed: Vec<String>,
    /// VMs whose share was changed while they run.
    pub changed: Vec<String>,
    /// VMs that get a new device process, since something else in their tables has changed: contexts of their guests are lost.
    pub restarted: Vec<String>,
    /// VMs that notice nothing.
    pub unchanged: Vec<String>,
    /// A sentence for each thing that the file says and that does not hold yet, with the remedy.
    pub notes: Vec<String>,
}

/// The counts, on one line.
impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { added, removed, changed, restarted, unchanged, notes: _ } = self;
        let counts = [
            (added, "added"),
            (removed, "removed"),
            (changed, "changed"),
            (restarted, "restarted"),
            (unchanged, "unchanged"),
        ];
        let counts = counts.map(|(vms, what)| format!("{} {what}", vms.len()));
        f.write_str(&counts.join(", "))
    }
}
