//! Four small Vulkan programs of ours: clearing memory, time stamps, the notice of a lost device, and the trial of memory at start-up.

pub(crate) mod clear;
pub(crate) mod notices;
pub(crate) mod stamps;
pub(crate) mod trial;
