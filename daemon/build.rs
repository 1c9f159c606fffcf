//! Links the C library's mathematics into the programs although no code of ours needs it.
//!
//! A software driver (lavapipe) compiles shaders at run time and looks for `expf` and its like among the process's own
//! symbols, which nearly every Vulkan program happens to have. Without them it calls address 0.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--push-state,--no-as-needed,-lm,--pop-state");
}
