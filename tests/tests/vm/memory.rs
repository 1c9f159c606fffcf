//! Memory that guest programs share with each other, and the back end of dma-bufs, on real kernels.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tests::daemon_process::{DaemonProcess, daemon_executable, integration_test};
use tests::differential;
use tests::packages::{HostVulkan, Suite};
use tests::vm::{Guest, LAVAPIPE, Options, Outcome, Script, Vm};

/// The text that `share_memory` prints if it succeeds.
const SHARED: &str = "shared 65536 words, sum ";

fn share_memory() -> Result<Vec<u8>> {
    std::fs::read(env!("CARGO_BIN_EXE_share_memory")).context("reading the guest program")
}

#[test]
#[ignore = "boots two machines for minutes"]
fn two_programs_of_debian_testing_share_device_memory() -> Result<()> {
    share_in_guest(Suite::Testing)
}

fn share_in_guest(suite: Suite) -> Result<()> {
    let guest = Guest::build(suite)?;
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, &["--memory", "memfd"])?;
    let script = Script::new("/share_memory && /share_memory").with_file("share_memory", share_memory()?);
    let options = Options { gpus: vec![daemon.socket()], ..Options::default() };
    let outcome = Vm::run(&guest, &script, &options).map_err(|error| error.context(daemon.log()))?;
    let (output, log) = (&outcome.output, daemon.log());
    ensure!(outcome.status == 0, "status {}\n{output}\n{}\n{log}", outcome.status, outcome.console);
    let sums: Vec<&str> = output.lines().filter(|line| line.starts_with(SHARED)).collect();
    ensure!(sums.len() == 2 && sums[0] == sums[1], "{output}\n{log}");
    daemon.stop()?;
    Ok(())
}

/// Groups of the differential suite that the emulated machine has time for.
const CASES: &[&str] = &["addresses.", "atomics.buffer.", "dispatches."];

/// The machine is a host here: lavapipe exports dma-bufs where the kernel makes them of memory files (`/dev/udmabuf`). The daemon, the tests of
/// shared memory, and unmodified Mesa through the bridge run in it.
#[test]
#[ignore = "boots two machines for minutes"]
fn dma_bufs_of_the_driver_serve_guests() -> Result<()> {
    let guest = Guest::build(Suite::Testing)?;
    let behaviour = integration_test("behaviour")?;
    let differential = PathBuf::from(env!("CARGO_BIN_EXE_differential"));
    let only: String = CASES.iter().map(|case| format!(" --only {case}")).collect();
    let mut script = Script::new(&format!(
        "export VK_DRIVER_FILES={LAVAPIPE} VK_LOADER_LAYERS_DISABLE='~implicit~'
         # As udev leaves it: for the members of a group.
         {{ chown 0:36 /dev/udmabuf && chmod 660 /dev/udmabuf; }} || exit 1
         /vhost-user-vulkan --list-gpus || exit 2
         echo '{NATIVE}'
         /differential run /shaders {only} || exit 3
         /vhost-user-vulkan --memory dma-buf --socket-path /tmp/gpu 2>/tmp/log &
         while [ ! -e /tmp/gpu ]; do kill -0 $! || {{ cat /tmp/log; exit 7; }}; sleep 0.1; done
         /vtest-bridge --vhost-socket /tmp/gpu --vtest-socket /tmp/vtest &
         while [ ! -e /tmp/vtest ]; do kill -0 $! || {{ cat /tmp/log; exit 8; }}; sleep 0.1; done
         echo '{GUEST}'
         (
             export VK_DRIVER_FILES=/usr/share/vulkan/icd.d/virtio_icd.json
             export VN_DEBUG=vtest VTEST_SOCKET_NAME=/tmp/vtest
             vulkaninfo --summary | grep deviceName
             timeout 1200 /differential run /shaders {only}
         ) || {{ cat /tmp/log; exit 4; }}
         echo '{END}'
         export VHOST_USER_VULKAN_DAEMON=/vhost-user-vulkan VHOST_USER_VULKAN_GPU=
         export VHOST_USER_VULKAN_OPTIONS='--memory dma-buf'
         timeout 1200 /behaviour --test-threads=1 external_memory::two_contexts external_memory::imported_memory || exit 5
         timeout 1200 /share_memory || exit 6
        "
    ));
    for (name, file) in [
        ("vhost-user-vulkan", daemon_executable()?),
        ("vtest-bridge", env!("CARGO_BIN_EXE_vtest-bridge").into()),
        ("behaviour", behaviour),
        ("share_memory", env!("CARGO_BIN_EXE_share_memory").into()),
        ("differential", differential.clone()),
    ] {
        script = script.with_file(name, std::fs::read(&file).with_context(|| file.display().to_string())?);
    }
    script = with_shaders(script, &differential::shaders(&differential)?)?.with_software_driver(&guest)?;
    let options = Options { memory_mib: 3072, ..Options::default() };
    let Outcome { status, output, console } = Vm::run(&guest, &script, &options)?;
    ensure!(status == 0, "status {status}\n{output}\n{console}");
    ensure!(output.contains("Virtio-GPU Venus (llvmpipe"), "no Venus device\n{output}");
    let between = |from, to| {
        let lines = output.lines().skip_while(move |line| *line != from).take_while(move |line| *line != to);
        lines.filter(|line| CASES.iter().any(|case| line.starts_with(case))).collect::<Vec<_>>()
    };
    let (native, found) = (between(NATIVE, GUEST), between(GUEST, END));
    let computed = native.iter().filter(|line| line.contains(" ok ")).count();
    println!("{computed} of {} cases computed\n{output}", native.len());
    ensure!(computed > 16, "{output}");
    ensure!(native == found, "natively\n{native:#?}\nin the guest\n{found:#?}");
    ensure!(output.contains(SHARED), "natively no memory is shared\n{output}");
    Ok(())
}

const NATIVE: &str = "--- natively:";
const GUEST: &str = "--- in the guest:";
const END: &str = "--- tests:";

/// Compiled shaders of the chosen cases, in a folder of the guest.
fn with_shaders(mut script: Script, folder: &Path) -> Result<Script> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".spv") && CASES.iter().any(|case| name.starts_with(case)) {
            script = script.with_file(&format!("shaders/{name}"), std::fs::read(&path)?);
        }
    }
    Ok(script)
}
