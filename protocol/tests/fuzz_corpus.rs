//! Replays the committed inputs of the fuzz targets: seeds, and everything that fuzzing ever found.

use protocol::{spirv, venus, virtio_gpu};
use std::{fs, path::Path};

fn replay(target: &str, check: fn(&[u8]) -> usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty(), "{target} has no seeds");
    let mut found = 0;
    for file in files {
        println!("{}", file.display());
        found += check(&fs::read(file).unwrap());
    }
    assert_ne!(found, 0, "nothing in the seeds of {target} decodes");
}

#[test]
fn committed_requests_hold() {
    replay("virtio_gpu_command", virtio_gpu::fuzzing::fuzz_command);
}

#[test]
fn committed_streams_hold() {
    replay("venus_stream", venus::fuzzing::fuzz_stream);
    replay("venus_roundtrip", venus::fuzzing::fuzz_roundtrip);
}

#[test]
fn committed_replies_hold() {
    replay("venus_reply", venus::fuzzing::fuzz_reply);
}

#[test]
fn committed_shaders_hold() {
    replay("spirv_module", spirv::fuzzing::fuzz_module);
}

#[test]
fn committed_ring_layouts_hold() {
    replay("ring_layout", venus::fuzzing::fuzz_ring_layout);
}
