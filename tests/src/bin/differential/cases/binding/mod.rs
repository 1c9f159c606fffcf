//! Pipelines, and how they get to their resources.

pub mod descriptors;
pub mod pipelines;
pub mod push_descriptors;
pub mod robustness;
