//! A request of the control queue.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::virtio_gpu::fuzzing::fuzz_command(bytes));
