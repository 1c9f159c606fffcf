//! Notes of workers for a trace, and their reader.
#![no_main]

fuzz::target!(daemon::trace::fuzzing::fuzz_trace);
