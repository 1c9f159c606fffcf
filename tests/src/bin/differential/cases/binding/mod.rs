//! Pipelines, and how they get to their resources.

pub(super) mod descriptors;
pub(super) mod pipelines;
pub(super) mod push_descriptors;
pub(super) mod robustness;
