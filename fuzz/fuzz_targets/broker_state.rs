//! The state of a broker, which another program reads to go on in the broker's place.
#![no_main]

fuzz::target!(daemon::broker::fuzzing::fuzz_state);
