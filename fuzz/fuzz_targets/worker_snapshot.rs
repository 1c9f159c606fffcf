//! A snapshot of a context as a hostile worker may send it.
#![no_main]

fuzz::target!(daemon::worker::fuzzing::fuzz_snapshot);
