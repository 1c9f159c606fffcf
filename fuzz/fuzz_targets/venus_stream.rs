//! A stream of Venus commands.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::venus::fuzzing::fuzz_stream(bytes));
