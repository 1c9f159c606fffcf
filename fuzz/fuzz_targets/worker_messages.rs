//! A worker with a device process that sends any messages.
#![no_main]

fuzz::target!(daemon::worker::fuzzing::fuzz_messages);
