//! What a worker claims to have written down of its context.
#![no_main]

fuzz::target!(daemon::worker::fuzzing::fuzz_snapshot);
