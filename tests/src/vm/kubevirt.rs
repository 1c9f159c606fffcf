//! A machine as KubeVirt hands it to libvirt: its domain, and the hook sidecar's script that changes it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::program::{LIMIT, succeed};

/// A domain with the elements and the indentation of KubeVirt's, emulated; it boots a kernel, as `kernelBoot` has it, and its console and command have
/// a file each. It has no network, whose device a test's host lacks, and no empty elements in `sysinfo`, for which libvirt's schema has no place.
pub const DOMAIN: &str = include_str!("kubevirt.xml");

/// The manifest that has the script.
pub const HOOK: &str = include_str!("../../../daemon/packaging/kubevirt/hook.yaml");

/// Returns the domain that the sidecar's script makes of a domain.
///
/// # Errors
/// The manifest has no script, or the script fails.
pub fn hooked(domain: &str) -> Result<String> {
    let (_, script) = HOOK.split_once("  onDefineDomain: |\n").context("the manifest has no script")?;
    let script: Vec<_> = script.lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), script.join("\n"))?;
    let mut python = Command::new("python3");
    python.arg(file.path()).args(["--vmi", "{}", "--domain", domain]);
    succeed(python, LIMIT)
}
