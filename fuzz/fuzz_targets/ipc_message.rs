//! A packet between device process and worker.
#![no_main]

fuzz::target!(daemon::ipc::fuzzing::fuzz_message);
