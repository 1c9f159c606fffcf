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

/// An operator who waits for the result of a reading.
#[derive(Clone, Copy, Debug)]
pub(in crate::broker) struct Asker<P> {
    pub(in crate::broker) peer: P,
    pub(in crate::broker) removal: Removal,
}

/// The meaning of VMs that are missing in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::broker) enum Removal {
    /// An operator has said that they are to be removed.
    Meant,
    /// The file may be half-written, or a wrong one: no VM loses its GPU for that while its guest is connected, and not all VMs are removed.
    Doubtful,
}

/// Returns why the VMs `gone`, which a file does not name any more, are not removed, unless that is meant. Each has its name, and whether a
/// frontend is connected; `left` is the number of VMs that the file names.
pub(in crate::broker) fn doubt(gone: &[(&str, bool)], left: usize) -> Option<String> {
    let names = |of: fn(&(&str, bool)) -> bool| -> Vec<&str> {
        gone.iter().filter(|vm| of(vm)).map(|(name, _)| *name).collect()
    };
    let connected = names(|(_, is_connected)| *is_connected);
    let why = match (gone.is_empty(), left) {
        (false, 0) => format!("the file names no VM any more, but {} are served", names(|_| true).join(", ")),
        _ if connected.is_empty() => return None,
        _ => format!("the file does not name {} any more, whose guests are connected", connected.join(", ")),
    };
    Some(format!("{why}; put them back, or remove them by `vhost-user-vulkan reload --remove`"))
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

#[cfg(test)]
mod tests {
    use super::doubt;

    #[test]
    fn a_vm_in_use_and_the_last_vms_are_removed_on_demand_only() {
        assert_eq!(doubt(&[], 0), None, "a file without VMs, as before");
        assert_eq!(doubt(&[("a", false), ("b", false)], 1), None);
        let remedy = "; put them back, or remove them by `vhost-user-vulkan reload --remove`";
        let used = doubt(&[("a", true), ("b", false), ("c", true)], 5);
        assert_eq!(
            used,
            Some(format!("the file does not name a, c any more, whose guests are connected{remedy}"))
        );
        let all = doubt(&[("a", false), ("b", true)], 0);
        assert_eq!(all, Some(format!("the file names no VM any more, but a, b are served{remedy}")));
    }
}
