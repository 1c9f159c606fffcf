//! Commands of a journal, done again on a driver that does nothing but looks closely.
#![no_main]

fuzz::target!(vulkan::fuzzing::fuzz_replay);
