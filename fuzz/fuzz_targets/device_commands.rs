//! Guests, workers and a failing host in any order.
#![no_main]

fuzz::target!(daemon::device::fuzzing::fuzz_device);
