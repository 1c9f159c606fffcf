//! The Debian package of the daemon: `cargo package-deb`.
//!
//! The daemon is built as for a release; programs of the repository make its descriptions (`pages`) and the list of its contents (`crates`);
//! debhelper packs both as the files in `daemon/packaging/debian` say. Two runs of one commit with the same tools give the same bytes, whatever the
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
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, bail, ensure};

pub use crates::{Crate, Crates};
pub use names::{Architecture, NAME};

use crate::packages::cross_compiler;
use crate::program::cargo::cargo_of_users;
use crate::program::{LIMIT, succeed};

/// The place where a debugger looks for the sources, instead of the folders of this machine.
const SOURCES: &str = "/usr/src/vhost-user-vulkan";

/// The files that a run has made.
#[derive(Clone, Debug)]
pub struct Package {
    /// The Debian package.
    pub deb: PathBuf,
    /// The list of the package's contents, in CycloneDX's format.
    pub sbom: PathBuf,
}

/// The care with which the programs of a package are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiled {
    /// All programs are those of a release.
    ForRelease,
    /// The libraries `daemon` and `vulkan` are not optimised, all others are: for tests of the files around the daemon.
    Quickly,
}

/// Makes the package below the target folder, and prints its progress on standard error.
///
/// # Errors
/// A program does not build, or a tool is missing; the message names the remedy.
pub fn make(architecture: Architecture, compiled: Compiled) -> Result<Package> {
    let target = Crates::of_the_daemon(architecture)?.target_folder;
    make_in(architecture, compiled, &target.join(compiled.folder()).join(architecture.debian()))
}

/// Makes the package in a folder, which is emptied before.
///
/// # Errors
/// As [`make`].
pub fn make_in(architecture: Architecture, compiled: Compiled, folder: &Path) -> Result<Package> {
    // cargo puts the programs of all packages into one folder.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let crates = Crates::of_the_daemon(architecture)?;
    eprintln!("package: release builds for {}", architecture.debian());
    let binaries =
        [build(&crates, architecture, &DAEMON, compiled)?, build(&crates, architecture, &DOCTOR, compiled)?];
    // Files of an earlier run must not get into this package.
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

impl Compiled {
    /// The folder of the package below the target folder.
    fn folder(self) -> &'static str {
        match self {
            Self::ForRelease => "package",
            Self::Quickly => "package-quick",
        }
    }

    /// Returns where a program lies that cargo has put into the folder `built`. A program that is not a release's is moved out of this folder, so
    /// that it is not taken for a release's.
    fn keep(self, built: &Path, Binary { name, package, .. }: &Binary) -> Result<PathBuf> {
        let program = built.join(name);
        if self == Self::ForRelease || *package != DAEMON.package {
            return Ok(program);
        }
        let folder = built.join("quick");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let kept = folder.join(name);
        fs::rename(&program, &kept).with_context(|| format!("cannot move {}", program.display()))?;
        Ok(kept)
    }

    /// Options of cargo's that change the release profile. They name packages, so that all others are compiled once for both.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Self::ForRelease => &[],
            Self::Quickly => &[
                "--config=profile.release.package.daemon.opt-level=0",
                "--config=profile.release.package.daemon.codegen-units=16",
                "--config=profile.release.package.vulkan.opt-level=0",
                "--config=profile.release.package.vulkan.codegen-units=16",
            ],
        }
    }
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

/// Builds a program and returns its executable.
fn build(
    crates: &Crates,
    architecture: Architecture,
    binary: &Binary,
    compiled: Compiled,
) -> Result<PathBuf> {
    let Binary { name, package, options } = binary;
    let foreign = Architecture::own() != Some(architecture);
    let mut cargo = cargo_of_users();
    cargo.args(["rustc", "--locked", "--release", "--package", package, "--bin", name]);
    cargo.arg("--target-dir").arg(&crates.target_folder);
    cargo.args(compiled.settings());
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
    let built = crates.target_folder.join(triple).join("release");
    compiled.keep(&built, binary)
}

/// Returns the commit that is built, by which the program names itself, with a `+` if files were changed since; none outside a git checkout.
/// The result stays the same as long as this process runs, whatever is committed meanwhile.
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
        // The folder has the name of the server from which the crates came.
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
