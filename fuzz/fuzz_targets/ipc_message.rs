//! A packet between device process and worker.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| daemon::ipc::fuzzing::fuzz_message(bytes));
