//! All cases, by group.

mod addresses;
mod arithmetic;
mod atomics;
mod descriptors;
mod devices;
mod dispatches;
mod elementwise;
mod extensions;
mod image_copies;
mod image_formats;
mod matrices;
mod memory;
mod pipelines;
mod properties;
mod push_descriptors;
mod queries;
mod recording;
mod releases;
mod robustness;
mod sampled_images;
mod shaders;
mod storage;
mod storage_images;
mod subgroups;
mod synchronization;

use crate::case::Case;

/// Every case, in the order in which they run.
pub fn all() -> Vec<Case> {
    let groups = [
        arithmetic::cases,
        storage::cases,
        subgroups::cases,
        atomics::cases,
        addresses::cases,
        descriptors::cases,
        push_descriptors::cases,
        pipelines::cases,
        dispatches::cases,
        shaders::cases,
        storage_images::cases,
        sampled_images::cases,
        image_copies::cases,
        image_formats::cases,
        recording::cases,
        memory::cases,
        matrices::cases,
        robustness::cases,
        extensions::cases,
        devices::cases,
        properties::cases,
        synchronization::cases,
        releases::cases,
        queries::cases,
    ];
    groups.into_iter().flat_map(|cases| cases()).collect()
}
