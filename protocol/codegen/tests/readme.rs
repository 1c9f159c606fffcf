//! The Rust in README.md is what the generator prints.

use std::fs;
use std::path::Path;

#[test]
fn rust_blocks_occur_in_the_goldens() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = fs::read_to_string(root.join("tests/golden/kettle.rs")).expect("golden exists");
    let readme = fs::read_to_string(root.join("README.md")).expect("README exists");
    let blocks: Vec<&str> =
        readme.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 5, "{} blocks", blocks.len());
    for block in blocks {
        assert!(golden.contains(block), "README.md shows what is not generated:\n{block}");
    }
}
