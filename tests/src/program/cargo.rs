//! cargo, as tests and commands of this repository call it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::sources::repository;

/// With these variables cargo starts `clippy-driver` for the packages of this repository. It compiles as rustc does, and reports each of Clippy's lints as
/// an error. `.ci/run` sets them when it compiles `acceptance`, so that cargo compiles no package twice.
pub const LINTED: [(&str, &str); 2] =
    [("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"), ("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__")];

/// Returns the command `cargo`, which runs in the repository, where all packages are built with the same features. It compiles as this program was
/// compiled, so that nothing is compiled again.
#[must_use]
pub fn cargo() -> Command {
    let mut command = cargo_of_users();
    if option_env!("RUSTC_WORKSPACE_WRAPPER") == Some(LINTED[0].1) {
        command.envs(LINTED);
    }
    command
}

/// Returns the command `cargo` like [`cargo`], but with the usual compiler, which users have.
#[must_use]
pub fn cargo_of_users() -> Command {
    let mut command = Command::new(env!("CARGO"));
    // `cargo acceptance` sets the variable for the programs of tests only: some crates are compiled anew when it changes.
    command.env_remove("RUSTC_BOOTSTRAP").current_dir(repository());
    for (name, _) in LINTED {
        command.env_remove(name);
    }
    command
}

/// Runs a command of cargo's to its end.
///
/// # Errors
/// It fails; `what` is not built then.
pub fn build(command: &mut Command, what: &str) -> Result<()> {
    ensure!(command.status().context("cannot run cargo")?.success(), "{what} does not build");
    Ok(())
}

/// The folder into which cargo compiles.
#[must_use]
pub fn target_folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => repository().join(folder),
        None => repository().join("target"),
    }
}

/// Returns the folder of the profile that this program was built in. Tests and examples lie in folders below it, programs in it.
///
/// # Errors
/// The program's own file is unknown.
pub fn own_profile() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().context("an executable lies in a folder")?;
    let is_below = ["deps", "examples"].iter().any(|name| folder.ends_with(name));
    let profile = if is_below { folder.parent().context("it lies in a folder")? } else { folder };
    Ok(profile.to_owned())
}

/// Returns the path of another program of this package, and has cargo make it if it is missing.
///
/// # Errors
/// It does not build.
pub fn sibling(name: &str) -> Result<PathBuf> {
    let program = own_profile()?.join(name);
    if !program.exists() {
        build(cargo().args(["build", "--quiet", "--bin", name]), name)?;
    }
    Ok(program)
}
