//! A stream of Venus commands.
#![no_main]

fuzz::target!(protocol::venus::fuzzing::fuzz_stream);
