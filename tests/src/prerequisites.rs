//! The prerequisites that the machine must offer before anything can be built or run, and how to get them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A command the runs need, and the Debian package that brings it.
const COMMANDS: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("python3", "python3"),
    ("cc", "gcc"),
    ("c++", "g++"),
    ("gpgv", "gpgv"),
    ("valgrind", "valgrind"),
    ("mmdebstrap", "mmdebstrap"),
    ("dpkg-buildpackage", "dpkg-dev"),
    ("dh", "debhelper"),
    ("lintian", "lintian"),
    ("lowdown", "lowdown"),
    ("man", "man-db"),
    ("systemd-analyze", "systemd"),
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("qemu-aarch64-static", "qemu-user-static"),
];

/// The C library with which programs for arm64 are linked, and run by emulation.
const ARM64_LIBRARY: &str = "/usr/aarch64-linux-gnu/lib/libc.so.6";

/// Installs what is missing when root; otherwise says what to install.
///
/// # Errors
/// Something is missing and could not be installed.
pub fn provide() -> Result<()> {
    let mut missing: Vec<&str> =
        COMMANDS.iter().filter(|(command, _)| !in_path(command)).map(|(_, package)| *package).collect();
    if !has_pip() {
        missing.push("python3-pip");
    }
    if !Path::new(ARM64_LIBRARY).exists() {
        missing.push("libc6-dev-arm64-cross");
    }
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!("missing on this machine: {packages}; install with: sudo apt-get install {packages}");
    }
    eprintln!("installing {packages}");
    apt_get(&["update", "-q"])?;
    apt_get(&[&["install", "-y", "-q", "--no-install-recommends"], missing.as_slice()].concat())
}

/// Returns whether this machine has a GPU device that a Vulkan driver may use.
#[must_use]
pub fn has_gpu() -> bool {
    Path::new("/dev/nvidia0").exists() || Path::new("/dev/dri/renderD128").exists()
}

fn in_path(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(command).is_file())
}

/// The Vulkan registry that generated code is checked against comes as a Python package.
fn has_pip() -> bool {
    let output = Command::new("python3").args(["-m", "pip", "--version"]).output();
    output.is_ok_and(|output| output.status.success())
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .context("cannot run apt-get")?;
    if !status.success() {
        bail!("apt-get {} failed", arguments.join(" "));
    }
    Ok(())
}
