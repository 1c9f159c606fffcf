//! The device process with workers that were taken over.
#![no_main]

fuzz::target!(daemon::serve::fuzzing::fuzz_workers);
