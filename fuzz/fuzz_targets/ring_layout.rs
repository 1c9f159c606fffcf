//! A ring's create info and counters.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::venus::fuzzing::fuzz_ring_layout(bytes));
