//! The state of a broker, as another program reads it and goes on from it.
#![no_main]

fuzz::target!(daemon::broker::fuzzing::fuzz_state);
