//! The processors that this process may use.

use std::sync::LazyLock;

/// Returns whether processors are few, so that programs and a software driver need them.
#[must_use]
pub fn are_few() -> bool {
    few(processors())
}

/// Returns whether so many processors are few.
pub(super) fn few(processors: usize) -> bool {
    processors < 4
}

/// Returns the number of processors that this process may use, as counted at the first call.
#[must_use]
pub fn processors() -> usize {
    *PROCESSORS
}

/// Counts the processors that this process may use. The limits of a control group are in files, so a process that later cannot see these files has to
/// count before.
pub fn count_processors() {
    LazyLock::force(&PROCESSORS);
}

static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, |processors| processors.get()));
