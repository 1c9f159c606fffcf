//! Debian 13's Venus driver with this project's patches, as the package that `guest-driver-patches/build` makes.
//!
//! The command keeps its packages, so only the first use takes minutes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Names a driver, a `.so`, that replaces the built one: for the work on patches.
const OVERRIDE: &str = "VHOST_USER_VULKAN_PATCHED_DRIVER";

/// The package's name.
pub const PATCHED_PACKAGE: &str = "mesa-venus-vhost-user-vulkan";

/// The file of the package; builds the package if the patches have changed. The command reports its progress on standard error.
///
/// # Errors
/// A patch does not apply, the driver cannot be built, or this machine may make no build root.
pub fn patched_package() -> Result<PathBuf> {
    let command = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest-driver-patches/build");
    let output = Command::new(command)
        .arg("--path")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {command}"))?;
    ensure!(output.status.success(), "{command} failed; it says above why");
    let path = String::from_utf8(output.stdout).context("a path in UTF-8")?;
    Ok(PathBuf::from(path.trim_end()))
}

/// The driver in the package, or the one that the environment names.
///
/// # Errors
/// As [`patched_package`].
pub fn patched_driver() -> Result<PathBuf> {
    if let Some(driver) = std::env::var_os(OVERRIDE).filter(|driver| !driver.is_empty()) {
        let driver = fs::canonicalize(&driver).with_context(|| format!("{OVERRIDE}={}", driver.display()))?;
        ensure!(driver.extension() == Some(OsStr::new("so")), "{OVERRIDE} names {}", driver.display());
        return Ok(driver);
    }
    let package = patched_package()?;
    let unpacked = package.with_file_name("unpacked");
    if !unpacked.exists() {
        unpack(&package, &unpacked)?;
    }
    let driver = unpacked.join("usr/lib/x86_64-linux-gnu").join(PATCHED_PACKAGE).join("libvulkan_virtio.so");
    ensure!(driver.exists(), "{} holds no driver", package.display());
    Ok(driver)
}

/// Unpacks `package` as `folder` in one step, because other tests may be doing the same.
fn unpack(package: &Path, folder: &Path) -> Result<()> {
    let fresh = tempfile::tempdir_in(folder.parent().context("the folder lies in another")?)?;
    let mut command = Command::new("dpkg-deb");
    let status = command.arg("-x").args([package, fresh.path()]).status().context("cannot run dpkg-deb")?;
    ensure!(status.success(), "{} cannot be unpacked", package.display());
    // Temporary folders are private, and a driver may be loaded by another user.
    fs::set_permissions(fresh.path(), fs::Permissions::from_mode(0o755))?;
    match fs::rename(fresh.path(), folder) {
        Err(error) if !folder.exists() => bail!("cannot rename to {}: {error}", folder.display()),
        _ => Ok(()),
    }
}
