//! Tests that what workers make of a valid client's commands is valid Vulkan: the Khronos validation layer sits between worker and driver.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use tests::clients::{Files, NCNN, OPERATORS, Packages, Place, Setup, VKDISPATCH, WGPU, WHISPER};
use tests::completion;
use tests::daemon::{Daemon, eventually};
use tests::differential::shaders;
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::{LIMIT, succeed};

/// The message that the layer prints in every process it is loaded into.
const PRESENT: &str = "CURRENT-VALIDATION-ENABLED";
/// The beginning of the layer's message about an error; the name of the error follows.
const FINDING: &str = "Validation Error: [ ";

/// Errors that programs make themselves, natively as well.
const KNOWN: &[(&str, &str)] = &[
    ("UNASSIGNED-vkAllocateMemory-maxMemoryAllocationSize", "a case asks for too much"),
    ("VUID-vkAllocateMemory-pAllocateInfo-01713", "the same case"),
    (
        "VUID-VkShaderModuleCreateInfo-pCode-08742",
        "shaders of derivative cases name the older of two extensions",
    ),
    ("VUID-StandaloneSpirv-None-10684", "shaders of VkFFT say how far apart words of workgroup memory are"),
];

/// Runs a client against a validated host and returns what was found and is not [`KNOWN`], each kind once.
fn findings(client: impl FnOnce(&Path) -> Result<Command>) -> Result<Vec<String>> {
    findings_with(&[], client)
}

/// Does what [`findings`] does, with options for the daemon.
fn findings_with(options: &[&str], client: impl FnOnce(&Path) -> Result<Command>) -> Result<Vec<String>> {
    let setup = Setup::on(Daemon::start_validated(options)?)?;
    succeed(client(setup.socket())?, LIMIT)?;
    setup.settle()?;
    // What workers print reaches the log by way of the device process.
    eventually(LIMIT, || setup.daemon().log().matches(PRESENT).count() > 1);
    let log = setup.daemon().log();
    ensure!(log.matches(PRESENT).count() > 1, "the layer is not in probe and worker:\n{log}");
    let known = |text: &&str| KNOWN.iter().any(|(name, _)| text.starts_with(name));
    let found = log.split(FINDING).skip(1).filter(|text| !known(text));
    let mut found: Vec<_> = found.map(|text| text.chars().take(800).collect()).collect();
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
fn work_of_independent_programs_is_valid() -> Result<()> {
    let (files, packages) = (Files::write()?, Packages::open(Suite::Testing)?);
    for client in [WHISPER, NCNN, VKDISPATCH, OPERATORS, WGPU] {
        // wgpu wants queues that draw.
        let options: &[&str] = if client.name == WGPU.name { &["--queues", "nominal"] } else { &[] };
        let found = findings_with(options, |socket| {
            client.command(&Place::Packages(&packages, Device::Venus(socket)), &files)
        });
        let found = found.with_context(|| client.name.to_owned())?;
        ensure!(found.is_empty(), "{}: {found:#?}", client.name);
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
    ensure!(found.is_empty(), "{found:#?}");
    Ok(())
}
