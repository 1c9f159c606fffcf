//! The Debian package of the daemon: `cargo package-deb`.
//!
//! The daemon is built as for a release; programs of the repository make what describes it (`pages`) and what is in it (`crates`); debhelper
//! packs both as the files in `daemon/packaging/debian` say. Two runs of one commit with the same tools give the same bytes, whatever the
//! folder: the program has no path of this machine in it, and files have the time of the commit.

pub mod by_hand;
mod crates;
pub mod installed;
mod names;
mod pages;
mod sbom;
mod staging;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

pub use crates::{Crate, Crates};
pub use names::{Architecture, NAME};

use crate::packages::cross_compiler;
use crate::program::cargo::cargo;
use crate::program::{LIMIT, succeed};

/// The place where a debugger looks for the sources, instead of the folders of this machine.
const SOURCES: &str = "/usr/src/vhost-user-vulkan";

/// The files that a run has made.
#[derive(Clone, Debug)]
pub struct Package {
    /// The Debian package.
    pub deb: PathBuf,
    /// The list of what is in it, in CycloneDX's format.
    pub sbom: PathBuf,
}

/// Makes the package below the target folder, and prints on standard error how far it is.
///
/// # Errors
/// Something does not build, or a tool is missing; the message names the remedy.
pub fn make(architecture: Architecture) -> Result<Package> {
    let target = Crates::of_the_daemon(architecture)?.target_folder;
    make_in(architecture, &target.join("package").join(architecture.debian()))
}

/// Makes the package as [`make`] does, with programs that are not optimised: for a test of what is around them.
///
/// # Errors
/// As [`make`].
pub fn make_quickly(architecture: Architecture) -> Result<Package> {
    let target = Crates::of_the_daemon(architecture)?.target_folder;
    make_with(architecture, &target.join("package-quick").join(architecture.debian()), QUICK)
}

/// Makes the package in a folder, which is emptied before.
///
/// # Errors
/// As [`make`].
pub fn make_in(architecture: Architecture, folder: &Path) -> Result<Package> {
    make_with(architecture, folder, &[])
}

/// Settings with which the release profile is compiled quickly.
const QUICK: &[(&str, &str)] = &[("LTO", "off"), ("OPT_LEVEL", "0"), ("DEBUG", "0"), ("CODEGEN_UNITS", "16")];

fn make_with(architecture: Architecture, folder: &Path, settings: &[(&str, &str)]) -> Result<Package> {
    let crates = Crates::of_the_daemon(architecture)?;
    eprintln!("package: release builds for {}", architecture.debian());
    let binaries =
        [build(&crates, architecture, &DAEMON, settings)?, build(&crates, architecture, &DOCTOR, settings)?];
    // What an earlier run has left must not get into this one.
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let stage = folder.join(NAME);
    eprintln!("package: pages, completions and licences");
    pages::write(&stage)?;
    fs::write(stage.join("third-party.txt"), crates.licences()?)?;
    staging::lay_out(&stage, &binaries, &crates.version)?;
    pack(&stage, architecture)?;
    let made = |ending: &str| -> Result<PathBuf> {
        let version = staging::debian_version(&crates.version);
        let file = folder.join(format!("{NAME}_{version}_{}.{ending}", architecture.debian()));
        ensure!(file.exists() || ending != "deb", "dpkg-buildpackage made no {}", file.display());
        Ok(file)
    };
    let package = Package { deb: made("deb")?, sbom: made("cdx.json")? };
    fs::write(&package.sbom, sbom::text(&crates, architecture)?)?;
    Ok(package)
}

/// A program of the package.
struct Binary {
    name: &'static str,
    package: &'static str,
    /// Options of the compiler for this program alone.
    options: &'static [&'static str],
}

const DAEMON: Binary = Binary { name: NAME, package: "daemon", options: &[] };
/// The checks for guests, which need no library of theirs: what `cargo doctor-for-guests` builds.
const DOCTOR: Binary = Binary {
    name: "vhost-user-vulkan-doctor",
    package: "doctor",
    options: &["-C", "target-feature=+crt-static", "-C", "strip=symbols"],
};

/// Builds a program, with these settings of the release profile instead of the usual, and returns its executable.
fn build(
    crates: &Crates,
    architecture: Architecture,
    binary: &Binary,
    settings: &[(&str, &str)],
) -> Result<PathBuf> {
    let Binary { name, package, options } = binary;
    let foreign = Architecture::own() != Some(architecture);
    let mut cargo = cargo();
    cargo.args(["rustc", "--locked", "--release", "--package", package, "--bin", name]);
    cargo.arg("--target-dir").arg(&crates.target_folder);
    for (setting, value) in settings {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    if foreign {
        cargo.args(["--target", architecture.triple()]);
        // The name of Debian's cross compiler.
        let prefix = architecture.triple().replace("-unknown", "");
        let variable = architecture.triple().to_uppercase().replace('-', "_");
        cargo.env(format!("CARGO_TARGET_{variable}_LINKER"), format!("{prefix}-gcc"));
        if let Some(compiler) = compiler_for(architecture)? {
            cargo.env("RUSTC", compiler);
        }
    }
    cargo.arg("--").args(*options);
    if let Some(commit) = commit(&crates.repository) {
        cargo.env("VHOST_USER_VULKAN_COMMIT", commit);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags(crates)?).current_dir(&crates.repository);
    crate::program::cargo::build(&mut cargo, name)?;
    let triple = if foreign { architecture.triple() } else { "" };
    Ok(crates.target_folder.join(triple).join("release").join(name))
}

/// Returns the commit that is built, by which the program names itself, with a `+` if files were changed since; none outside a git checkout.
/// It is the same for as long as this process runs, whatever is committed meanwhile.
pub fn commit(repository: &Path) -> Option<&'static str> {
    static COMMIT: OnceLock<Option<String>> = OnceLock::new();
    let ask = || {
        let mut git = Command::new("git");
        git.args(["describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]).current_dir(repository);
        succeed(git, LIMIT).ok().map(|commit| commit.trim().to_owned())
    };
    COMMIT.get_or_init(ask).as_deref()
}

/// Returns the compiler to take if the usual one has no standard library for the target.
fn compiler_for(architecture: Architecture) -> Result<Option<PathBuf>> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut asked = Command::new(rustc);
    asked.args(["--print", "target-libdir", "--target", architecture.triple()]);
    let folder = succeed(asked, LIMIT)?;
    if Path::new(folder.trim()).exists() {
        return Ok(None);
    }
    eprintln!("package: rustc knows no {0} (rustup target add {0}): taking Debian's", architecture.triple());
    cross_compiler().map(Some)
}

/// The compiler's flags by which a program names no folder of this machine, as `CARGO_ENCODED_RUSTFLAGS` has them.
pub fn flags(crates: &Crates) -> Result<String> {
    let mut remapped = vec![(crates.repository.clone(), PathBuf::from(SOURCES))];
    let registries = crates.cargo_home.join("registry/src");
    for registry in fs::read_dir(&registries).with_context(|| format!("reading {}", registries.display()))? {
        // Its name is that of the server that the crates came from.
        remapped.push((registry?.path(), Path::new(SOURCES).join("crates")));
    }
    let inherited = std::env::var("RUSTFLAGS").unwrap_or_default();
    let mut flags: Vec<String> = inherited.split_whitespace().map(str::to_owned).collect();
    flags.extend(
        remapped.iter().map(|(from, to)| format!("--remap-path-prefix={}={}", from.display(), to.display())),
    );
    Ok(flags.join("\u{1f}"))
}

/// Calls debhelper by way of `dpkg-buildpackage`, which also writes down with which versions of tools it was done (`.buildinfo`).
fn pack(stage: &Path, architecture: Architecture) -> Result<()> {
    eprintln!("package: packing");
    let mut command = Command::new("dpkg-buildpackage");
    command.args(["--build=binary", "--no-sign", "--host-arch", architecture.debian()]).current_dir(stage);
    command.env("LC_ALL", "C.UTF-8");
    let Ok(output) = command.output() else {
        bail!("dpkg-buildpackage is missing; install with: sudo apt-get install debhelper dpkg-dev lowdown")
    };
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let remedy = "is debhelper missing? sudo apt-get install debhelper";
    ensure!(output.status.success(), "dpkg-buildpackage failed ({remedy}):\n{said}");
    Ok(())
}
