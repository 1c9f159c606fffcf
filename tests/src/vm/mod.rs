//! Virtual machines: stock Debian kernels and Mesa drivers on QEMU, with the daemon as their GPU.
//!
//! A guest is a kernel and an initramfs made from Debian packages: busybox, the virtio-gpu modules, the Venus driver,
//! vulkaninfo and llama.cpp. A virtual machine boots it, runs one shell script and ends with the script's status.

mod cpio;
mod elf;
mod guest;
pub mod kubevirt;
mod machine;
mod modules;
mod output;
mod pause;
mod qmp;

pub use guest::{Guest, LAVAPIPE, Script};
pub use machine::{Options, Outcome, Vm, accepts};
pub use pause::pause;
