//! All cases, by group.

mod binding;
mod commands;
mod device;
mod images;
mod programs;

use crate::case::Case;

/// Every case, in the order in which they run.
pub(crate) fn all() -> Vec<Case> {
    let groups = [
        programs::arithmetic::cases,
        programs::storage::cases,
        programs::subgroups::cases,
        programs::atomics::cases,
        programs::addresses::cases,
        binding::descriptors::cases,
        binding::push_descriptors::cases,
        binding::pipelines::cases,
        commands::dispatches::cases,
        programs::shaders::cases,
        images::storage::cases,
        images::sampled::cases,
        images::copies::cases,
        images::blits::cases,
        images::formats::cases,
        commands::recording::cases,
        device::memory::cases,
        programs::matrices::cases,
        binding::robustness::cases,
        device::extensions::cases,
        device::devices::cases,
        device::properties::cases,
        commands::synchronization::cases,
        commands::releases::cases,
        commands::queries::cases,
    ];
    groups.into_iter().flat_map(|cases| cases()).collect()
}
