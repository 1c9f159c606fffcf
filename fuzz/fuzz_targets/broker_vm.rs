//! A VM that was taken over, against the broker: its device process and its workers.
#![no_main]

fuzz::target!(daemon::broker::fuzzing::fuzz_vm);
