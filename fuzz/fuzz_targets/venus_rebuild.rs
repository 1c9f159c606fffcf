//! Steps of a snapshot, done on a driver that does nothing but looks closely.
#![no_main]

fuzz::target!(daemon::worker::fuzzing::fuzz_steps);
