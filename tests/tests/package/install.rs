//! `cargo install --path daemon` installs a daemon that works, for users without a package.

use anyhow::{Context, Result, ensure};
use std::process::Command;
use tempfile::TempDir;
use tests::daemon_process::daemon_executable;
use tests::program::cargo::cargo;
use tests::program::{LIMIT, succeed};
use tests::sources::repository;

#[test]
#[ignore = "compiles the daemon once more, as cargo installs it"]
fn cargo_installs_the_daemon() -> Result<()> {
    // The build uses the profile and the folder of the tests, in which all but the last step is done.
    let built = daemon_executable()?;
    let target =
        built.parent().and_then(|profile| profile.parent()).context("a profile lies in the target folder")?;
    let folder = TempDir::new()?;
    let mut cargo = cargo();
    cargo
        .args(["install", "--quiet", "--locked", "--debug", "--no-track", "--path"])
        .arg(repository().join("daemon"));
    cargo.arg("--root").arg(folder.path()).arg("--target-dir").arg(target);
    succeed(cargo, LIMIT)?;
    let mut installed = Command::new(folder.path().join("bin/vhost-user-vulkan"));
    installed.arg("--version");
    let said = succeed(installed, LIMIT)?;
    ensure!(said.trim() == format!("vhost-user-vulkan {}", env!("CARGO_PKG_VERSION")), "{said}");
    Ok(())
}
