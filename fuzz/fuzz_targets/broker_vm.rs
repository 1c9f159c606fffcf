//! A VM under an attacker's control, with its device process and its workers, against the broker.
#![no_main]

fuzz::target!(daemon::broker::fuzzing::fuzz_vm);
