//! A Python with packages from PyPI, for clients that only exist as wheels.
//!
//! The interpreter is Debian 12's: its version no longer changes, so that wheels can be named with their digests. It runs with
//! a newer suite's C library, like every program of a package root. Wheels are fetched by this machine's pip and never
//! installed: each set lies in a folder of its own below the cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::root::{PackageRoot, Suite};
use super::{cache_dir, fetched};

/// A complete set of wheels for `INTERPRETER`: pip looks up no others.
#[derive(Clone, Copy, Debug)]
pub struct Wheels {
    /// The name of the folder. A changed list needs another name.
    pub name: &'static str,
    /// Lines of pip's requirements format: `package==version --hash=sha256:…`.
    pub requirements: &'static str,
}

/// The interpreter with one set of wheels.
#[derive(Clone, Debug)]
pub struct Python {
    root: PackageRoot,
    modules: PathBuf,
}

/// Debian 12's, as wheels call it and as its files are named.
const INTERPRETER: &str = "3.11";
/// Kinds of Linux wheels that a C library of Debian testing can load.
const PLATFORMS: [&str; 5] = [
    "manylinux_2_17_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_34_x86_64",
];

impl Python {
    /// The interpreter and `wheels`; downloads those that are not in the cache.
    ///
    /// # Errors
    /// There is no pip, or the packages cannot be had with the digests they should have.
    pub fn with(wheels: &Wheels) -> Result<Self> {
        let root = PackageRoot::with(Suite::Bookworm, &["python3"])?;
        let modules = provide(wheels).with_context(|| format!("Python packages of {}", wheels.name))?;
        Ok(Self { root, modules })
    }

    /// The interpreter's executable.
    #[must_use]
    pub fn executable(&self) -> PathBuf {
        self.root.path("usr/bin").join(format!("python{INTERPRETER}"))
    }

    /// The folder of libraries that the interpreter needs and that another suite may lack.
    #[must_use]
    pub fn libraries(&self) -> PathBuf {
        self.root.libraries()
    }

    /// Lets `command`, which runs the interpreter, find its own modules and the wheels, and no modules of the machine or the user.
    pub fn prepare(&self, command: &mut Command) {
        command
            .env("PYTHONHOME", self.root.path("usr"))
            .env("PYTHONPATH", &self.modules)
            .env("PYTHONNOUSERSITE", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1");
    }
}

/// The folder with the unpacked wheels.
fn provide(wheels: &Wheels) -> Result<PathBuf> {
    let folder = cache_dir()?.join("python");
    let modules = folder.join(wheels.name);
    if modules.exists() {
        return Ok(modules);
    }
    fs::create_dir_all(&folder)?;
    let lock = File::create(folder.join("lock"))?;
    lock.lock().context("cannot lock the package cache")?;
    if modules.exists() {
        return Ok(modules);
    }
    eprintln!("packages: python: fetching {}", wheels.name);
    // The folder is renamed when it is complete; its guard removes the files of an interrupted run.
    let work = tempfile::tempdir_in(&folder)?;
    fs::write(work.path().join("requirements.txt"), wheels.requirements)?;
    fetched(wheels.name, || download(work.path()))?;
    let fresh = work.path().join("modules");
    for entry in fs::read_dir(work.path().join("wheels"))? {
        unpack(&entry?.path(), &fresh)?;
    }
    fs::rename(fresh, &modules)?;
    Ok(modules)
}

fn download(work: &Path) -> Result<()> {
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
    ])
    .args(["--only-binary=:all:", "--implementation", "cp", "--python-version", INTERPRETER])
    .args(PLATFORMS.iter().flat_map(|platform| ["--platform", platform]))
    .arg("--requirement")
    .arg(work.join("requirements.txt"))
    .arg("--dest")
    .arg(work.join("wheels"));
    let output = pip.output().context("cannot run python3")?;
    ensure!(output.status.success(), "pip failed:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Unpacks a wheel: a zip archive whose contents have the layout in which Python imports them.
fn unpack(wheel: &Path, modules: &Path) -> Result<()> {
    let mut zipfile = Command::new("python3");
    zipfile.args(["-m", "zipfile", "-e"]).args([wheel, modules]);
    let output = zipfile.output().context("cannot run python3")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} could not be unpacked:\n{said}", wheel.display());
    Ok(())
}
