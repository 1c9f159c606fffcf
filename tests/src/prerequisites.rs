//! The tools that the machine must offer before a command can be built or run, and how to get them. Each command asks for its own tools only.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A tool of the machine, and the Debian package that brings it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    presence: Presence,
    package: &'static str,
}

/// The sign by which this module recognises that a tool is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// A program of this name in the search path.
    Program(&'static str),
    /// A module that Python can run.
    Module(&'static str),
    /// A file.
    File(&'static str),
}

const fn program(name: &'static str, package: &'static str) -> Tool {
    Tool { presence: Presence::Program(name), package }
}

const APT: Tool = program("apt-get", "apt");
const DPKG: Tool = program("dpkg-deb", "dpkg");
/// apt checks signatures with it.
const GPGV: Tool = program("gpgv", "gpgv");
const MMDEBSTRAP: Tool = program("mmdebstrap", "mmdebstrap");
const BUILD_PACKAGE: Tool = program("dpkg-buildpackage", "dpkg-dev");
const DEBHELPER: Tool = program("dh", "debhelper");
/// The package's documents become pages of the manual by it.
const LOWDOWN: Tool = program("lowdown", "lowdown");
/// pip fetches wheels: the Vulkan registry that generated code is checked against comes as one.
pub const PIP: Tool = Tool { presence: Presence::Module("pip"), package: "python3-pip" };
/// `cargo instructions` counts with it.
pub const VALGRIND: Tool = program("valgrind", "valgrind");
/// libFuzzer is C++.
pub const CXX: Tool = program("c++", "g++");

/// The tools that unpack Debian packages as test material (`crate::packages`).
pub const PACKAGES: &[Tool] = &[APT, DPKG, GPGV];
/// The tools of the clients; some clients are programs in Python.
pub const CLIENTS: &[Tool] = &[APT, DPKG, GPGV, PIP];
/// The tools that build the patched driver and install packages in systems of their own.
pub const SYSTEMS: &[Tool] = &[APT, DPKG, GPGV, PIP, MMDEBSTRAP];
/// The tools that make the Debian package.
pub const PACKAGING: &[Tool] = &[BUILD_PACKAGE, DEBHELPER, LOWDOWN];
/// The tools that make the Debian package, and those that check it.
pub const PACKAGE: &[Tool] = &[
    APT,
    DPKG,
    GPGV,
    BUILD_PACKAGE,
    DEBHELPER,
    program("lintian", "lintian"),
    LOWDOWN,
    program("man", "man-db"),
    program("systemd-analyze", "systemd"),
];
/// The tools that make the package for arm64 on another machine, and run its programs.
pub const ARM64: &[Tool] = &[
    program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    program("qemu-aarch64-static", "qemu-user-static"),
    // The C library with which the programs are linked.
    Tool {
        presence: Presence::File("/usr/aarch64-linux-gnu/lib/libc.so.6"),
        package: "libc6-dev-arm64-cross",
    },
];

impl Tool {
    fn is_there(&self) -> bool {
        match self.presence {
            Presence::Program(name) => in_path(name),
            Presence::Module(name) => {
                let output = Command::new("python3").args(["-m", name, "--version"]).output();
                output.is_ok_and(|output| output.status.success())
            }
            Presence::File(path) => Path::new(path).exists(),
        }
    }
}

/// Installs the missing ones of these tools if this process is root; otherwise says how to install them.
///
/// # Errors
/// Something is missing and could not be installed.
pub fn provide<'t>(tools: impl IntoIterator<Item = &'t Tool>) -> Result<()> {
    let missing: BTreeSet<&str> =
        tools.into_iter().filter(|tool| !tool.is_there()).map(|tool| tool.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.into_iter().collect();
    let named = packages.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!("missing on this machine: {named}; install with: sudo apt-get install {named}");
    }
    eprintln!("installing {named}");
    apt_get(&["update", "-q"])?;
    apt_get(&[&["install", "-y", "-q", "--no-install-recommends"], packages.as_slice()].concat())
}

/// Returns whether this machine has a GPU device that a Vulkan driver may use.
#[must_use]
pub fn has_gpu() -> bool {
    Path::new("/dev/nvidia0").exists() || Path::new("/dev/dri/renderD128").exists()
}

/// Returns whether KVM may run a stock guest on this machine; only a guest that boots proves it. The kernel's own KVM needs an extension of the processor.
/// A module that needs no extension (PVM) offers `/dev/kvm` too, but runs only kernels that are made for it.
#[must_use]
pub fn may_have_kvm() -> bool {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    virtualizes(&processor) && File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Returns whether a processor of x86 has Intel's or AMD's extension for virtual machines, according to `/proc/cpuinfo`.
fn virtualizes(processor: &str) -> bool {
    let flags = processor.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| ["vmx", "svm"].contains(&flag))
}

fn in_path(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(command).is_file())
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        // The machine may be installing other packages by itself.
        .args(["-o", "DPkg::Lock::Timeout=600", "-o", "Acquire::Retries=3"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .context("cannot run apt-get")?;
    if !status.success() {
        bail!("apt-get {} failed", arguments.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_an_extension_for_virtual_machines_or_not() {
        let processor = |flags| {
            format!("processor\t: 0\nvmx flags\t: vnmi\nflags\t\t: fpu {flags} sse2\nbugs\t\t: svm\n")
        };
        assert!(virtualizes(&processor("vmx")) && virtualizes(&processor("svm")));
        assert!(
            !virtualizes(&processor("svm_lock")) && !virtualizes("") && !virtualizes("CPU part\t: vmx\n")
        );
    }

    #[test]
    fn a_tool_is_there_or_not() {
        assert!(program("sh", "dash").is_there() && !program("no-such-program", "none").is_there());
        let file = |path| Tool { presence: Presence::File(path), package: "none" };
        assert!(file("/proc/self/exe").is_there() && !file("/no/such/file").is_there());
        assert!(!Tool { presence: Presence::Module("no_such_module"), package: "none" }.is_there());
    }
}
