//! Venus commands, executed on a driver that does nothing but looks closely.
#![no_main]

fuzz::target!(daemon::vulkan::fuzzing::fuzz_execute);
