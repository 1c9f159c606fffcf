//! The device process with workers under an attacker's control.
#![no_main]

fuzz::target!(daemon::serve::fuzzing::fuzz_workers);
