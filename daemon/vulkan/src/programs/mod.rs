//! Four small Vulkan programs of ours: clearing memory, time stamps, the notice of a lost device, and the trial of memory at start-up.

pub mod clear;
pub mod notices;
pub mod stamps;
pub mod trial;
