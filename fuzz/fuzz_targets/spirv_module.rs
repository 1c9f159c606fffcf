//! Shader modules, checked and rewritten.
#![no_main]

fuzz::target!(protocol::spirv::fuzzing::fuzz_module);
