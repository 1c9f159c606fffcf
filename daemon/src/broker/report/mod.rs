//! This module makes the reports to operators and monitoring: the state of all VMs as data, as a table, and as metrics.

pub(super) mod details;
pub(super) mod metrics;
pub(super) mod status;
pub(super) mod table;
pub(super) mod words;

/// Returns how many VMs are in which state, in a line for people.
pub fn counted<'a>(states: impl Iterator<Item = &'a str>) -> String {
    let states: Vec<_> = states.collect();
    let counts = ["connected", "waiting", "starting", "ending", "ended"].into_iter().filter_map(|state| {
        let count = states.iter().filter(|other| **other == state).count();
        let hint = if state == "ended" { " (see log)" } else { "" };
        (count > 0).then(|| format!("{count} {state}{hint}"))
    });
    std::iter::once(vms(states.len()))
        .chain([counts.collect::<Vec<_>>().join(", ")])
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(": ")
}

/// Returns a number of VMs, in words for people.
#[must_use]
pub fn vms(count: usize) -> String {
    if count == 1 { "1 VM".to_owned() } else { format!("{count} VMs") }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn vms_are_counted_by_their_state() {
        let states = ["waiting", "connected", "ended", "connected", "waiting", "connected"];
        assert_eq!(counted(states.into_iter()), "6 VMs: 3 connected, 2 waiting, 1 ended (see log)");
        assert_eq!(counted(["ending", "starting"].into_iter()), "2 VMs: 1 starting, 1 ending");
        assert_eq!(counted(["starting"].into_iter()), "1 VM: 1 starting");
        assert_eq!(counted([].into_iter()), "0 VMs");
    }
}
