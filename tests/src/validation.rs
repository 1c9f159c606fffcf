//! Clients of a daemon whose workers have the Khronos validation layer between themselves and the driver.

use crate::clients::Setup;
use crate::daemon::{Daemon, eventually};
use crate::differential::shaders;
use crate::packages::{ClientRoot, Device};
use crate::program::{LIMIT, succeed};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;

/// The message that the layer prints in every process it is loaded into.
const PRESENT: &str = "CURRENT-VALIDATION-ENABLED";
/// The beginning of the layer's message about an error; the name of the error follows.
const FINDING: &str = "Validation Error: [ ";

/// Errors that programs make themselves, also natively.
const KNOWN: &[(&str, &str)] = &[
    ("UNASSIGNED-vkAllocateMemory-maxMemoryAllocationSize", "a case asks for too much"),
    ("VUID-vkAllocateMemory-pAllocateInfo-01713", "the same case"),
    (
        "VUID-VkShaderModuleCreateInfo-pCode-08742",
        "shaders of derivative cases name the older of two extensions",
    ),
    ("VUID-StandaloneSpirv-None-10684", "shaders of VkFFT say how far apart words of workgroup memory are"),
];

/// Runs a client against a validated host and returns the errors that it does not make natively as well, each kind once.
///
/// # Errors
/// The client or the daemon fails, or the layer is not there.
pub fn findings(client: impl FnOnce(&Path) -> Result<Command>) -> Result<Vec<String>> {
    let setup = Setup::on(Daemon::start_validated(&[])?)?;
    succeed(client(setup.socket())?, LIMIT)?;
    found_by(setup)
}

/// Returns the [`findings`] of the differential suite `program` on the driver of `client`.
///
/// # Errors
/// As [`findings`], or the suite's shaders do not compile.
pub fn findings_in_differential(program: &Path, client: &ClientRoot) -> Result<Vec<String>> {
    let shaders = shaders(program)?;
    findings(|socket| {
        let mut command = client.own(program, Device::Venus(socket))?;
        command.arg("run").arg(&shaders);
        Ok(command)
    })
}

/// Returns the layer's findings in the workers of a daemon that was started with it, each kind once, when all workers have ended.
///
/// # Errors
/// The daemon fails, or the layer is not there.
pub fn found_by(setup: Setup) -> Result<Vec<String>> {
    setup.settle()?;
    // The output of workers reaches the log by way of the device process.
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
