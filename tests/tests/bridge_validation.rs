//! What workers make of a valid client's commands is valid Vulkan: the Khronos validation layer sits between worker and driver.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use tests::clients::Setup;
use tests::completion;
use tests::daemon::{Daemon, eventually};
use tests::differential::shaders;
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::{LIMIT, succeed};

/// What it says in every process it is loaded into.
const PRESENT: &str = "CURRENT-VALIDATION-ENABLED";
/// How the layer begins to tell of an error, and which one.
const FINDING: &str = "Validation Error: [ ";

/// What the differential suite does on purpose, and what is known of the daemon.
const KNOWN: &[(&str, &str)] = &[
    ("UNASSIGNED-vkAllocateMemory-maxMemoryAllocationSize", "a case asks for too much"),
    ("VUID-vkAllocateMemory-pAllocateInfo-01713", "the same case"),
    (
        "VUID-VkShaderModuleCreateInfo-pCode-08742",
        "shaders of derivative cases name the older of two extensions",
    ),
];

/// Runs a client against a validated host and returns what was found, each kind once.
fn findings(client: impl FnOnce(&Path) -> Result<Command>) -> Result<Vec<String>> {
    let setup = Setup::on(Daemon::start_validated()?)?;
    succeed(client(setup.socket())?, LIMIT)?;
    setup.settle()?;
    // What workers print reaches the log by way of the device process.
    eventually(LIMIT, || setup.daemon().log().matches(PRESENT).count() > 1);
    let log = setup.daemon().log();
    ensure!(log.matches(PRESENT).count() > 1, "the layer is not in probe and worker:\n{log}");
    let mut found: Vec<_> = log.split(FINDING).skip(1).map(|text| text.chars().take(800).collect()).collect();
    found.sort_unstable();
    found.dedup_by_key(|text: &mut String| text.split(' ').next().map(str::to_owned));
    Ok(found)
}

#[test]
fn queries_of_vulkaninfo_are_valid() -> Result<()> {
    for suite in [Suite::Trixie, Suite::Testing, Suite::Unstable] {
        let found = findings(|socket| ClientRoot::open(suite)?.through_vtest("vulkaninfo", socket));
        let found = found.with_context(|| format!("{suite:?}"))?;
        ensure!(found.is_empty(), "{suite:?}: {found:#?}");
    }
    Ok(())
}

#[test]
fn work_of_llama_is_valid() -> Result<()> {
    let model = tempfile::NamedTempFile::new()?;
    std::fs::write(model.path(), completion::model())?;
    for suite in [Suite::Testing, Suite::Unstable] {
        let found = findings(|socket| {
            let mut command = ClientRoot::open(suite)?.through_vtest("llama-completion", socket)?;
            command.args(completion::arguments(model.path(), 8));
            Ok(command)
        });
        let found = found.with_context(|| format!("{suite:?}"))?;
        ensure!(found.is_empty(), "{suite:?}: {found:#?}");
    }
    Ok(())
}

#[test]
fn differential_suite_is_valid() -> Result<()> {
    let program = Path::new(env!("CARGO_BIN_EXE_differential"));
    let shaders = shaders(program)?;
    let client = ClientRoot::open(Suite::Testing)?;
    let found = findings(|socket| {
        let mut command = client.own(program, Device::Venus(socket))?;
        command.arg("run").arg(&shaders);
        Ok(command)
    })?;
    let known = |text: &String| KNOWN.iter().any(|(name, _)| text.starts_with(name));
    let unknown: Vec<_> = found.into_iter().filter(|text| !known(text)).collect();
    ensure!(unknown.is_empty(), "{unknown:#?}");
    Ok(())
}
