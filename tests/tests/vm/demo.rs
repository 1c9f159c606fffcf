//! `cargo demo` names the device on which its guest computed, and the commands for the rest.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::daemon_process::daemon_executable;
use tests::packages::Suite;
use tests::program::succeed;
use tests::vm::{Guest, Options, Vm};

/// The demo ends a guest after ten minutes.
const LIMIT: Duration = Duration::from_secs(1200);

#[test]
#[ignore = "boots a machine, which the tests of guests do"]
fn the_demo_says_on_what_it_computed() -> Result<()> {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"));
    demo.args(["--software", "--emulate", "--daemon"]).arg(daemon_executable()?);
    let said = succeed(demo, LIMIT)?;
    let done = "done: the words above were computed on a software driver (lavapipe, which computes on the processor), in a VM by emulation of its processor\n";
    for words in [
        "which are kept in /",
        "MB to fetch",
        "Virtio-GPU Venus (llvmpipe",
        "mean nothing",
        done,
        "\n--gpu GPU ",
        "\n--kvm ",
    ] {
        ensure!(said.contains(words), "no {words:?} in\n{said}");
    }
    ensure!(
        !said.contains("without optimization"),
        "the demo does not know how the daemon was compiled\n{said}"
    );
    Ok(())
}

#[test]
fn machines_that_do_not_boot_are_told_from_those_that_do() -> Result<()> {
    let guest = Guest::build(Suite::Testing)?;
    ensure!(Vm::works(&guest, &Options::default())?, "the guest does not boot");
    // With so little memory, the kernel has no room for its files.
    let small = Options { memory_mib: 32, ..Options::default() };
    ensure!(!Vm::works(&guest, &small)?, "the guest boots with 32 MiB");
    Ok(())
}
