//! The state of a device as anyone may have written it.
#![no_main]

fuzz::target!(daemon::serve::fuzzing::fuzz_device_state);
