//! Venus replies, decoded, encoded and decoded again.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::venus::fuzzing::fuzz_reply(bytes));
