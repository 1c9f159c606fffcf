//! Guests, workers and a failing host in any order.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| daemon::device::fuzzing::fuzz_device(bytes));
