//! Stock Debian guests find the virtual GPU and compute the same results on it as the host without it.

use anyhow::{Context, Result, ensure};
use tests::completion;
use tests::daemon_process::DaemonProcess;
use tests::packages::{ClientRoot, HostVulkan, Suite, patched_driver};
use tests::vm::{Guest, Options, Script, Vm};

const WORDS: u32 = 32;

/// Mappings that 4096 small allocations of the patched driver may need. QEMU ends a machine with about 500.
const MAPPINGS_MAX: u32 = 300;

#[test]
fn debian_13_computes_what_the_host_computes() -> Result<()> {
    computes_what_the_host_computes(Suite::Trixie)
}

/// The patched library has the stock one's place; the package puts it beside the stock one, which `tests/tests/patched/package.rs` tests.
#[test]
fn debian_13_with_the_patched_driver_computes_what_the_host_computes() -> Result<()> {
    let driver = std::fs::read(patched_driver()?)?;
    let program = std::fs::read(env!("CARGO_BIN_EXE_small_memory"))?;
    let look = "vulkaninfo --summary && vulkaninfo | grep VK_KHR_cooperative_matrix || exit 1
        chmod +x /small_memory && /small_memory 4096 || exit 1";
    let script = completion::script(look, WORDS);
    let script = script.with_file("usr/lib/x86_64-linux-gnu/libvulkan_virtio.so", driver);
    let output = computes(&ClientRoot::patched()?, &script.with_file("small_memory", program))?;
    ensure!(output.contains("+vuv"), "the stock driver is used\n{output}");
    let mappings =
        output.split_once("4096 pieces of 4096 bytes in ").and_then(|(_, rest)| rest.split_once(' '));
    let mappings: u32 = mappings.context("no pieces")?.0.parse()?;
    println!("4096 small allocations take {mappings} mappings");
    ensure!((1..=MAPPINGS_MAX).contains(&mappings), "{mappings} mappings");
    Ok(())
}

#[test]
fn debian_testing_computes_what_the_host_computes() -> Result<()> {
    computes_what_the_host_computes(Suite::Testing)
}

#[test]
fn debian_unstable_computes_what_the_host_computes() -> Result<()> {
    computes_what_the_host_computes(Suite::Unstable)
}

/// Kernels before 6.4 refuse a GPU without a scanout, so the default has one.
#[test]
fn the_kernel_of_debian_12_drives_the_gpu() -> Result<()> {
    let guest = Guest::build_with_kernel(Suite::Trixie, Suite::Bookworm)?;
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, &[])?;
    let options = Options { gpus: vec![daemon.socket()], ..Options::default() };
    let outcome = Vm::run(&guest, &Script::new("uname -r; vulkaninfo --summary"), &options);
    let outcome = outcome.map_err(|error| error.context(daemon.log()))?;
    ensure!(outcome.status == 0, "{}\n{}\n{}", outcome.output, outcome.console, daemon.log());
    ensure!(outcome.output.starts_with("6.1."), "another kernel\n{}", outcome.output);
    ensure!(outcome.output.contains("Virtio-GPU Venus (llvmpipe"), "no Venus device\n{}", outcome.output);
    daemon.stop()?;
    Ok(())
}

#[test]
fn a_guest_uses_two_gpus_one_of_them_without_scanout() -> Result<()> {
    let guest = Guest::build(Suite::Testing)?;
    let vulkan = HostVulkan::lavapipe()?;
    let daemons = [DaemonProcess::start(&vulkan, &[])?, DaemonProcess::start(&vulkan, &["--scanouts", "0"])?];
    let gpus = daemons.iter().map(DaemonProcess::socket).collect();
    // Mesa takes the first render node it finds.
    let first = "vulkaninfo --summary | grep deviceName";
    let script = Script::new(&format!("{first}; rm /dev/dri/renderD128; {first}"));
    let outcome = Vm::run(&guest, &script, &Options { gpus, ..Options::default() })?;
    let found = outcome.output.matches("Virtio-GPU Venus").count();
    ensure!(found == 2, "{found} devices instead of 2\n{}\n{}", outcome.output, outcome.console);
    for daemon in daemons {
        daemon.stop()?;
    }
    Ok(())
}

fn computes_what_the_host_computes(suite: Suite) -> Result<()> {
    computes(&ClientRoot::open(suite)?, &completion::script("vulkaninfo --summary || exit 1", WORDS))
        .map(drop)
}

/// Runs `script`, which writes [`WORDS`] words, in a guest with `client`'s Mesa, and compares them with the host's. Returns the whole output.
fn computes(client: &ClientRoot, script: &Script) -> Result<String> {
    let suite = client.suite();
    let expected = completion::native(client, WORDS)?;
    let guest = Guest::build(suite)?;
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, &[])?;
    let outcome = Vm::run(&guest, script, &Options { gpus: vec![daemon.socket()], ..Options::default() });
    let outcome = outcome.map_err(|error| error.context(daemon.log()))?;
    let output = &outcome.output;
    ensure!(outcome.status == 0, "status {}\n{output}\n{}", outcome.status, daemon.log());
    ensure!(output.contains("deviceName         = Virtio-GPU Venus (llvmpipe"), "no Venus device\n{output}");
    // Mesa shows 1.4 from 25.1 on.
    let version = if suite == Suite::Trixie { "1.3" } else { "1.4" };
    let shown = format!("apiVersion         = {version}.");
    ensure!(output.contains(&shown), "not Vulkan {version}\n{output}");
    let words = completion::words_of(output, WORDS);
    ensure!(
        words.as_ref() == Some(&expected),
        "the guest said {words:?}, the host {expected:?}\n{}",
        daemon.log()
    );
    daemon.stop()?;
    Ok(outcome.output)
}
