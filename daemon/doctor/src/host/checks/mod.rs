//! The checks of a host, as functions of its facts, in the best order to repair faults. A check whose precondition another
//! check has found missing is skipped, so that a fault is reported once.
//!
//! `gpus` looks at drivers and GPUs, `kernel` at the features that confine and limit workers, `vmms` at the programs that connect, `setup` at the
//! configuration and at running daemons.

mod gpus;
mod kernel;
mod setup;
mod vmms;

use super::facts::Facts;
use crate::report::Finding;

/// Returns the findings about a host.
#[must_use]
pub fn check(facts: &Facts) -> Vec<Finding> {
    let mut findings =
        vec![gpus::loader(facts), gpus::drivers(facts), gpus::nvidia(facts), gpus::nodes(facts)];
    findings.extend(gpus::gpus(facts));
    findings.extend([kernel::sandbox(facts), kernel::landlock(facts), kernel::functions(facts)]);
    findings.extend([kernel::control_groups(facts), kernel::descriptors(facts), kernel::tasks(facts)]);
    findings.extend([vmms::vmm(facts), vmms::other_back_ends(facts)]);
    findings.extend([vmms::access_control(facts), vmms::socket(facts)]);
    findings.extend([
        setup::configuration(facts),
        setup::window(facts),
        setup::folders(facts),
        setup::broker(facts),
        setup::clashes(facts),
    ]);
    findings
}
