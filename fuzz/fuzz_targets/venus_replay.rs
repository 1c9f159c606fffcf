//! Commands of a journal, done again on a driver that does no work but checks its parameters.
#![no_main]

fuzz::target!(vulkan::fuzzing::fuzz_replay);
