//! The build script, which links the programs with more than their code asks for.
//!
//! The C library's mathematics: a software driver (lavapipe) compiles shaders at run time and looks for `expf` and its like among the
//! process's own symbols, which nearly every Vulkan program happens to have. Without them it calls address 0.
//!
//! Symbols of the daemon that libraries find before the C library's (`src/interpose.rs`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--push-state,--no-as-needed,-lm,--pop-state");
    for symbol in ["mmap", "mmap64"] {
        println!("cargo::rustc-link-arg-bin=vhost-user-vulkan=-Wl,--export-dynamic-symbol={symbol}");
    }
}
