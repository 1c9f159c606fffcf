//! Reads the configuration file again: `reader` reads and checks it, `plan` lists the changes, and `told` is the report to an operator. This module
//! knows no processes: `vms` carries out the changes. `listener` has the sockets of the broker itself, which `reader` also checks.
//!
//! No GPU that a guest uses ends because a file was read again, unless an operator says so (`reload --now`).

pub(super) mod listener;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod model;
pub(super) mod plan;
#[cfg(test)]
mod plan_tests;
pub(super) mod reader;
mod told;

use super::settings::Settings;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The answer to [`Request::Reload`](super::Request::Reload): the change of each VM, by name, and the changes that have to wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// VMs that are new in the file.
    pub added: Vec<String>,
    /// VMs that are not in the file any more.
    pub removed: Vec<String>,
    /// VMs whose share was changed while they run.
    pub changed: Vec<String>,
    /// VMs that get a new device process, since other keys in their tables have changed: contexts of their guests are lost.
    pub restarted: Vec<String>,
    /// VMs that notice nothing.
    pub unchanged: Vec<String>,
    /// VMs in use whose GPU the file's changes would end: these take effect when their frontends have disconnected.
    #[serde(default)]
    pub pending: Vec<String>,
    /// A sentence for each setting of the file that is not in force yet, with the remedy.
    pub notes: Vec<String>,
}

/// The operator who asked for a reading and waits for its result. If SIGHUP asked, no peer waits.
#[derive(Clone, Copy, Debug)]
pub(in crate::broker) struct Asker<P> {
    pub(in crate::broker) peer: Option<P>,
    pub(in crate::broker) how: How,
}

/// The way in which an operator wants a file to be taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::broker) struct How {
    /// The broker also makes changes that end the GPU of a VM in use, and accepts a file that names no VM, which might otherwise be half-written or
    /// the wrong file.
    pub(in crate::broker) now: bool,
    /// The operator wants to know the changes, and the broker makes none.
    pub(in crate::broker) dry_run: bool,
}

/// Returns why a file that names no VM any more is not accepted, unless an operator confirms it.
pub(in crate::broker) fn doubt(old: &Settings, new: &Settings) -> Option<String> {
    let served: Vec<_> = old.vms.iter().map(|vm| vm.name.as_str()).collect();
    (new.vms.is_empty() && !served.is_empty()).then(|| {
        format!(
            "the file names no VM any more, but {} are served; put them back, or remove them by `{NOW}`",
            served.join(", ")
        )
    })
}

/// The command that also makes changes which end GPUs of VMs in use.
const NOW: &str = "vhost-user-vulkan reload --now";

/// The counts, on one line. The count of VMs with waiting changes is shown if it is not zero.
impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { added, removed, changed, restarted, unchanged, pending, notes: _ } = self;
        let always = [
            (added, "added"),
            (removed, "removed"),
            (changed, "changed"),
            (restarted, "restarted"),
            (unchanged, "unchanged"),
        ];
        let some = (!pending.is_empty()).then_some((pending, "pending"));
        let counts = always.into_iter().chain(some).map(|(vms, what)| format!("{} {what}", vms.len()));
        f.write_str(&counts.collect::<Vec<_>>().join(", "))
    }
}
