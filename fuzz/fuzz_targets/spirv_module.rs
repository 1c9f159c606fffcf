//! Shader modules, checked and rewritten.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::spirv::fuzzing::fuzz_module(bytes));
