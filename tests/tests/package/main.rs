//! The project as it is installed: packages, archives and units.

mod arm64;
mod crates;
mod deb;
mod first_steps;
mod install;
mod units;

use anyhow::{Context, Result, anyhow};
use std::process::Command;
use std::sync::OnceLock;
use tests::package::{Architecture, Compiled, Package};
use tests::program::{LIMIT, succeed};
use tests::sources::repository;

/// The answer of the package's program to `--version`.
fn version() -> String {
    let version = concat!("vhost-user-vulkan ", env!("CARGO_PKG_VERSION"));
    tests::package::commit(&repository())
        .map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"))
}

/// The package, made once for all tests, with programs that are compiled quickly.
fn made() -> Result<&'static Package> {
    static MADE: OnceLock<Result<Package, String>> = OnceLock::new();
    once(&MADE, Compiled::Quickly)
}

/// The package of a release, made once for all tests.
fn released() -> Result<&'static Package> {
    static RELEASED: OnceLock<Result<Package, String>> = OnceLock::new();
    once(&RELEASED, Compiled::ForRelease)
}

fn once(package: &'static OnceLock<Result<Package, String>>, compiled: Compiled) -> Result<&'static Package> {
    let make = || {
        tests::package::make(Architecture::own().context("no package is made for this machine")?, compiled)
    };
    package
        .get_or_init(|| make().map_err(|error| format!("{error:#}")))
        .as_ref()
        .map_err(|error| anyhow!("{error}"))
}

fn lintian_finds_nothing_in(package: &Package) -> Result<()> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error,warning", "--tag-display-limit", "0"]).arg(&package.deb);
    succeed(lintian, LIMIT).map(drop)
}
