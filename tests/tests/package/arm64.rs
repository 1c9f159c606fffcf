//! The package for arm64, cross-built: its program runs, by emulation, and Debian's checks find nothing.

use crate::lintian_finds_nothing_in;
use anyhow::{Context, Result, ensure};
use std::process::Command;
use tempfile::TempDir;
use tests::package::{self, Architecture, Compiled};
use tests::program::{LIMIT, succeed};

/// The libraries with which a program for arm64 runs here.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

#[test]
#[ignore = "compiles everything for another architecture"]
fn the_package_for_arm64_is_made_and_its_program_runs() -> Result<()> {
    if Architecture::own() != Some(Architecture::Amd64) {
        println!("skipped: the package is cross-built on amd64");
        return Ok(());
    }
    let package = package::make(Architecture::Arm64, Compiled::Quickly)?;
    lintian_finds_nothing_in(&package)?;
    let mut command = Command::new("dpkg-deb");
    command.arg("-f").arg(&package.deb).args(["Depends"]);
    let depends = succeed(command, LIMIT)?;
    // The libraries of a machine of that architecture, not those of the cross compiler.
    ensure!(depends.contains("libc6 (>= ") && !depends.contains("arm64"), "{depends}");
    let folder = TempDir::new()?;
    let mut command = Command::new("dpkg-deb");
    command.arg("-x").args([&package.deb, folder.path()]);
    succeed(command, LIMIT)?;
    let run = |option: &str| -> Result<String> {
        let mut command = Command::new("qemu-aarch64-static");
        command.args(["-L", LIBRARIES]).arg(folder.path().join("usr/bin/vhost-user-vulkan")).arg(option);
        succeed(command, LIMIT).with_context(|| option.to_owned())
    };
    ensure!(run("--version")?.trim() == crate::version());
    ensure!(run("--help")?.contains("--socket-path"));
    let lists = run("--print-seccomp")?;
    ensure!(
        lists
            .lines()
            .filter(|line| line.starts_with("  "))
            .all(|line| line.contains("futex") || line.contains("waitid")),
        "{lists}"
    );
    Ok(())
}
