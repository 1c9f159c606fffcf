//! Venus commands, decoded, encoded and decoded again.
#![no_main]

fuzz::target!(protocol::venus::fuzzing::fuzz_roundtrip);
