//! Pipelines, and the bindings of their resources.

pub(super) mod descriptors;
pub(super) mod pipelines;
pub(super) mod push_descriptors;
pub(super) mod robustness;
