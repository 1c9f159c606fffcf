//! The test harness: everything that drives the daemon from outside.
//!
//! `frontend` is a VMM without a VM, `guest` a virtio-gpu driver on top of it, `bridge` lets unmodified Venus clients on this host use that driver.
//! `packages` fetches Debian packages as test material, `package` makes the daemon's own, `acceptance` runs everything, `sources` and `documents`
//! read the sources and the documents for the tests of the structure. The tests themselves are in `tests/tests`, a program for each stage.

#![forbid(unsafe_code)]

pub mod acceptance;
pub mod attacks;
pub mod bench;
pub mod booted;
pub mod bridge;
pub mod broker;
pub mod cgroup;
pub mod clients;
pub mod completion;
pub mod daemon;
pub mod daemon_process;
pub mod differential;
pub mod documents;
pub mod frontend;
pub mod fuzzing;
pub mod guest;
pub mod instructions;
pub mod looping_shader;
pub mod model;
pub mod package;
pub mod packages;
pub mod port;
pub mod prerequisites;
pub mod program;
pub mod random;
pub mod shares;
pub mod siege;
pub mod soak;
pub mod sources;
pub mod stand;
pub mod terminal;
pub mod validation;
pub mod vm;
