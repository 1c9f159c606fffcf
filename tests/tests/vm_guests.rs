//! Stock Debian guests find the virtual GPU and compute the same on it as the host does without it.

use anyhow::{Result, ensure};
use tests::completion;
use tests::daemon_process::DaemonProcess;
use tests::packages::{ClientRoot, HostVulkan, Suite};
use tests::vm::{Guest, Options, Vm};

const WORDS: u32 = 32;

#[test]
fn debian_13_computes_what_the_host_computes() -> Result<()> {
    computes_what_the_host_computes(Suite::Trixie)
}

#[test]
fn debian_testing_computes_what_the_host_computes() -> Result<()> {
    computes_what_the_host_computes(Suite::Testing)
}

#[test]
fn debian_unstable_computes_what_the_host_computes() -> Result<()> {
    computes_what_the_host_computes(Suite::Unstable)
}

fn computes_what_the_host_computes(suite: Suite) -> Result<()> {
    let expected = completion::native(&ClientRoot::open(suite)?, WORDS)?;
    let guest = Guest::build(suite)?;
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, &[])?;
    let script = completion::script("vulkaninfo --summary || exit 1", WORDS);
    let outcome = Vm::run(&guest, &script, &Options { gpus: vec![daemon.socket()], ..Options::default() });
    let outcome = outcome.map_err(|error| error.context(daemon.log()))?;
    let output = &outcome.output;
    ensure!(outcome.status == 0, "status {}\n{output}\n{}", outcome.status, daemon.log());
    ensure!(output.contains("deviceName         = Virtio-GPU Venus (llvmpipe"), "no Venus device\n{output}");
    ensure!(output.contains("apiVersion         = 1.3."), "not Vulkan 1.3\n{output}");
    let words = completion::words_of(output);
    ensure!(
        words == Some(expected.as_str()),
        "the guest said {words:?}, the host {expected:?}\n{}",
        daemon.log()
    );
    daemon.stop()?;
    Ok(())
}
