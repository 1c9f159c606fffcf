//! Venus commands, executed on a driver that does no work but checks its parameters.
#![no_main]

fuzz::target!(vulkan::fuzzing::fuzz_execute);
