//! Generator of the Venus codec: Vulkan registry and `inputs/` in, Rust under `generated/` out.

mod ir;

fn main() {}
