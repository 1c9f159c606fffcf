//! A request of the control queue.
#![no_main]

fuzz::target!(protocol::virtio_gpu::fuzzing::fuzz_command);
