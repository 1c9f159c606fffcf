//! Some cases of the differential suite in virtual machines: stock kernels and Mesa give the bits that the host's driver gives natively. The
//! newest Mesa runs all cases in `bridge/restart`, and boots in `guests`.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use tests::daemon_process::DaemonProcess;
use tests::differential::{GAPS, differences, parse, run, shaders, tally};
use tests::packages::{ClientRoot, Device, HostVulkan, Suite};
use tests::vm::{Guest, Options, Script, Vm};

const PROGRAM: &str = env!("CARGO_BIN_EXE_differential");

/// The chosen cases: one or more of each group, because emulation is slow.
const ONLY: &[&str] = &[
    "arithmetic.f16",
    "arithmetic.dot.packed",
    "storage.push",
    "subgroups.arithmetic",
    "atomics.buffer",
    "addresses.",
    "descriptors.dynamic",
    "descriptors.update_after_bind",
    "push_descriptors.",
    "pipelines.specialization",
    "pipelines.cache",
    "dispatches.indirect",
    "images.storage.dimension",
    "images.sampled.dimension",
    "images.copy.levels",
    "images.host_copy.in",
    "recording.update",
    "recording.submit",
    "recording.secondary",
    "matrices.product",
    "devices.group",
    "devices.threads",
    "synchronization.",
    "queries.",
    "properties.",
];

#[test]
#[ignore = "the suite runs before the bridge with the same drivers; a machine takes minutes for it"]
fn debian_13_gives_what_the_device_gives() -> Result<()> {
    gives_what_the_device_gives(Suite::Trixie)
}

#[test]
#[ignore = "the suite runs before the bridge with the same drivers; a machine takes minutes for it"]
fn debian_testing_gives_what_the_device_gives() -> Result<()> {
    gives_what_the_device_gives(Suite::Testing)
}

fn gives_what_the_device_gives(suite: Suite) -> Result<()> {
    let shaders = shaders(Path::new(PROGRAM))?;
    let client = ClientRoot::open(Suite::Testing)?;
    let expected = run(|| client.own(Path::new(PROGRAM), Device::Native), &shaders, ONLY)?;
    ensure!(tally(&expected).0 > 100, "only {:?} run natively", tally(&expected));

    let only: String = ONLY.iter().map(|start| format!(" --only {start}")).collect();
    let mut script = Script::new(&format!("chmod +x /differential; /differential run /shaders{only}"));
    script = script.with_file("differential", fs::read(PROGRAM).context("reading the guest program")?);
    for entry in fs::read_dir(&shaders)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".spv") && ONLY.iter().any(|start| name.starts_with(start)) {
            script = script.with_file(&format!("shaders/{name}"), fs::read(&path)?);
        }
    }
    let guest = Guest::build(suite)?;
    // A heap of the guest is no larger than its quota, so the quota is set above the host's memory.
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, &["--host-memory", "1024GiB"])?;
    let outcome = Vm::run(&guest, &script, &Options { gpus: vec![daemon.socket()], ..Options::default() });
    let outcome = outcome.map_err(|error| error.context(daemon.log()))?;
    ensure!(outcome.status == 0, "{}\n{}\n{}", outcome.output, outcome.console, daemon.log());
    let found = parse(&outcome.output.replace('\r', ""))?;
    println!("natively {:?} (ok, skipped, other), in the guest {:?}", tally(&expected), tally(&found));
    let differing = differences(&expected, &found, suite, GAPS);
    ensure!(differing.is_empty(), "{suite:?}:\n{}", differing.join("\n"));
    daemon.stop()?;
    Ok(())
}
