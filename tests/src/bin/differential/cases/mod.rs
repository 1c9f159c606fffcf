//! All cases, by group.

mod addresses;
mod arithmetic;
mod atomics;
mod dispatches;
mod elementwise;
mod images;
mod pipelines;
mod shaders;
mod storage;
mod subgroups;

use crate::case::Case;

/// Every case, in the order in which they run.
pub fn all() -> Vec<Case> {
    let groups = [
        arithmetic::cases,
        storage::cases,
        subgroups::cases,
        atomics::cases,
        addresses::cases,
        pipelines::cases,
        dispatches::cases,
        shaders::cases,
    ];
    groups.into_iter().flat_map(|cases| cases()).collect()
}
