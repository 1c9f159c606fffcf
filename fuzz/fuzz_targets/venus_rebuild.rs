//! Steps of a snapshot, done on a driver that does no work but checks its parameters.
#![no_main]

fuzz::target!(daemon::worker::fuzzing::fuzz_steps);
