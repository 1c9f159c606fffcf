//! Vulkan programs of ours: clearing memory and copying its contents on a queue of our own, time stamps, the notice of a lost device, and the
//! trial of memory at start-up.

pub(crate) mod alias;
pub(crate) mod clear;
pub(crate) mod copy;
pub(crate) mod notices;
pub(crate) mod own_queue;
pub(crate) mod stamps;
pub(crate) mod trial;
