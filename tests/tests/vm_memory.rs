//! Memory that guest programs share with each other, and the back end of dma-bufs, on real kernels.

use anyhow::{Context, Result, ensure};
use tests::daemon_process::DaemonProcess;
use tests::packages::{HostVulkan, Suite};
use tests::vm::{Guest, Options, Script, Vm};

/// What `share_memory` prints wherever it works.
const SHARED: &str = "shared 65536 words, sum ";

fn share_memory() -> Result<Vec<u8>> {
    std::fs::read(env!("CARGO_BIN_EXE_share_memory")).context("reading the guest program")
}

#[test]
fn two_guest_programs_share_device_memory() -> Result<()> {
    let guest = Guest::build(Suite::Testing)?;
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, &["--memory", "memfd"])?;
    let script = Script::new("/share_memory && /share_memory").with_file("share_memory", share_memory()?);
    let options = Options { gpus: vec![daemon.socket()], ..Options::default() };
    let outcome = Vm::run(&guest, &script, &options).map_err(|error| error.context(daemon.log()))?;
    let (output, log) = (&outcome.output, daemon.log());
    ensure!(outcome.status == 0, "status {}\n{output}\n{}\n{log}", outcome.status, outcome.console);
    ensure!(output.matches(SHARED).count() == 2, "{output}\n{log}");
    daemon.stop()?;
    Ok(())
}
