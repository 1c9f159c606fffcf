//! The build script, which links the programs with more than their code asks for.
//!
//! The C library's mathematics: a software driver (lavapipe) compiles shaders at run time and looks for `expf` and its like among the
//! process's own symbols, which nearly every Vulkan program happens to have. Without them it calls address 0.
//!
//! Symbols of the daemon that libraries find before the C library's (`src/interpose.rs`).
//!
//! Packed relocations (`DT_RELR`): the places at which the loader adds the program's address are a list of bits, and not of 24 bytes each, which is a
//! thirtieth of the program. The C library has to be 2.36 or newer (Debian 12). A linker that knows nothing of it says so, and packs nothing.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--push-state,--no-as-needed,-lm,--pop-state");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    for symbol in ["ioctl", "mmap", "mmap64"] {
        println!("cargo::rustc-link-arg-bin=vhost-user-vulkan=-Wl,--export-dynamic-symbol={symbol}");
    }
}
