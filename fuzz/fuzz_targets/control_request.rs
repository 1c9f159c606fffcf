//! Lines that an operator's client sends.
#![no_main]

fuzz::target!(daemon::broker::fuzzing::fuzz_control);
