//! A worker under a device process that says anything.
#![no_main]

fuzz::target!(daemon::worker::fuzzing::fuzz_messages);
