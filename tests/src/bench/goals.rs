//! The goals that a guest has to reach. No other file has these numbers.

use super::measures::Row;
use super::sides::LOOKING;
use std::fmt;

/// The goal that a row has to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The time on the host divided by the time in the guest is at least this number.
    Ratio(f64),
    /// The time in the guest is at most the time on the host plus this number of nanoseconds.
    Added(f64),
    /// The number is at most this.
    AtMost(f64),
    /// The number in the guest is at most that on the host plus this one.
    Above(f64),
}

const MS: f64 = 1e6;
const US: f64 = 1e3;

/// The goals with a GPU. A name that ends with `*` is the beginning of names.
const GPU: &[(&str, Goal)] = &[
    ("llama-prompt", Goal::Ratio(0.99)),
    ("llama-generate", Goal::Ratio(0.98)),
    ("kernel-50us-*", Goal::Ratio(0.90)),
    ("kernel-500us-*", Goal::Ratio(0.97)),
    ("kernel-2ms-*", Goal::Ratio(0.99)),
    ("kernel-20ms-*", Goal::Ratio(0.99)),
    ("kernel-50ms-*", Goal::Ratio(0.99)),
    ("dispatch-wait", Goal::Added(10.0 * US)),
    ("submissions", Goal::Ratio(0.9)),
    ("record-command", Goal::Ratio(1.0)),
    ("upload-1MiB", Goal::Ratio(0.98)),
    ("upload-16MiB", Goal::Ratio(0.98)),
    ("upload-256MiB", Goal::Ratio(0.98)),
    ("upload-1GiB", Goal::Ratio(0.98)),
    ("upload-memcpy-*", Goal::Ratio(0.98)),
    ("download-1MiB", Goal::Ratio(0.98)),
    ("download-16MiB", Goal::Ratio(0.98)),
    ("download-256MiB", Goal::Ratio(0.98)),
    ("download-1GiB", Goal::Ratio(0.98)),
    ("download-memcpy-*", Goal::Ratio(0.98)),
    ("write-*", Goal::Ratio(0.98)),
    ("read-*", Goal::Ratio(0.98)),
    ("host-1MiB", Goal::Ratio(1.0)),
    ("device-1MiB", Goal::Ratio(1.0 / 1.2)),
    ("pipelines-500", Goal::Ratio(1.0 / 1.1)),
    ("start-up", Goal::Added(60.0 * MS)),
];

/// The goals with a software driver, which shares the processors with all other processes.
const SOFTWARE: &[(&str, Goal)] = &[("kernel-50ms-*", Goal::Ratio(0.98))];

/// The goals with any driver.
const ALWAYS: &[(&str, Goal)] = &[
    ("kicks-flat", Goal::AtMost(1.0)),
    ("kicks-1000Hz", Goal::AtMost(1.0)),
    ("kicks-200Hz", Goal::AtMost(1.0)),
    ("calls-flat", Goal::AtMost(1.0)),
    ("calls-1000Hz", Goal::AtMost(1.0)),
    ("calls-200Hz", Goal::AtMost(1.0)),
    ("kicks-idle", Goal::AtMost(0.0)),
    ("calls-idle", Goal::AtMost(0.0)),
    ("memory-context", Goal::Above(16.0)),
];

/// Mesa from 26.2 on puts the fences of submissions into the virtqueue: one kick and one call for each.
const FENCES_IN_THE_QUEUE: &str = "26.2";

/// Returns the goal that a row has to reach in a guest of this name, if there is one.
#[must_use]
pub fn goal(row: &Row, guest: &str, software: bool) -> Option<Goal> {
    let fits = |(name, _): &&(&str, Goal)| match name.strip_suffix('*') {
        Some(beginning) => row.name.starts_with(beginning),
        None => row.name == *name,
    };
    if guest == LOOKING {
        return None;
    }
    let table = if software { SOFTWARE } else { GPU };
    let (_, goal) = table.iter().chain(ALWAYS).find(fits)?;
    let counts_fences = row.group == "cost" && guest.contains(FENCES_IN_THE_QUEUE);
    match goal {
        Goal::AtMost(most) if counts_fences && *most > 0.0 => Some(Goal::AtMost(most + 1000.0)),
        goal => Some(*goal),
    }
}

impl Goal {
    /// Returns whether the goal is reached, if there are numbers for it.
    #[must_use]
    pub fn is_reached(self, native: Option<f64>, guest: f64, ratio: Option<f64>) -> Option<bool> {
        match self {
            Self::Ratio(least) => ratio.map(|ratio| ratio >= least),
            Self::Added(most) | Self::Above(most) => native.map(|native| guest <= native + most),
            Self::AtMost(most) => Some(guest <= most),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(least) => write!(f, "{least:.2}"),
            Self::Added(most) if *most >= MS => write!(f, "+{:.0} ms", most / MS),
            Self::Added(most) => write!(f, "+{:.0} us", most / US),
            Self::AtMost(most) => write!(f, "<= {most:.0}"),
            Self::Above(most) => write!(f, "+{most:.0}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::measures::Unit;
    use super::*;

    fn row(group: &'static str, name: &str) -> Row {
        Row { group, name: name.into(), unit: Unit::Time }
    }

    #[test]
    fn goals_are_found_by_the_whole_name_or_its_beginning() {
        assert_eq!(goal(&row("kernels", "kernel-2ms-four"), "mesa-26.1", false), Some(Goal::Ratio(0.99)));
        assert_eq!(goal(&row("kernels", "kernel-2ms-four"), "mesa-26.1", true), None);
        assert_eq!(goal(&row("copies", "upload-4KiB"), "mesa-26.1", false), None);
        assert_eq!(goal(&row("kernels", "kernel-2ms-four"), LOOKING, false), None);
    }

    #[test]
    fn newer_mesa_may_kick_once_for_each_fence() {
        assert_eq!(goal(&row("cost", "kicks-flat"), "mesa-26.1", true), Some(Goal::AtMost(1.0)));
        assert_eq!(goal(&row("cost", "kicks-flat"), "mesa-26.2", true), Some(Goal::AtMost(1001.0)));
        assert_eq!(goal(&row("cost", "kicks-idle"), "mesa-26.2", true), Some(Goal::AtMost(0.0)));
    }

    #[test]
    fn a_goal_says_whether_it_is_reached() {
        assert_eq!(Goal::Ratio(0.9).is_reached(Some(9.0), 10.0, Some(0.9)), Some(true));
        assert_eq!(Goal::Added(5.0).is_reached(Some(9.0), 15.0, None), Some(false));
        assert_eq!(Goal::Added(5.0).is_reached(None, 15.0, None), None);
    }
}
