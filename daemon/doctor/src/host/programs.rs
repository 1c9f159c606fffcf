//! The VMMs of a host, asked for their abilities.

use crate::commands::{in_path, said};
use crate::system::System;
use std::path::{Path, PathBuf};

/// The device by which QEMU carries a vhost-user GPU with a window.
pub(super) const DEVICE: &str = "vhost-user-test-device-pci";

/// A QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// The path of the program.
    pub path: PathBuf,
    /// The version, or the reason why the program does not tell it.
    pub version: Result<String, String>,
    /// The program has the device.
    pub has_device: bool,
}

/// A crosvm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crosvm {
    /// The path of the program.
    pub path: PathBuf,
    /// The program has the option `--vhost-user`.
    pub has_vhost_user: bool,
}

/// Finds QEMU: the given one, or else the one in the search path.
pub(super) fn qemu(system: &System, named: Option<&Path>) -> Option<Qemu> {
    let program = format!("qemu-system-{}", std::env::consts::ARCH);
    let path = named.map(Path::to_owned).or_else(|| in_path(system, &program))?;
    let version = said(&path, &["--version"]).and_then(|text| {
        let word = text
            .lines()
            .next()
            .and_then(|line| line.split_once("version "))
            .map(|(_, rest)| rest.split(' ').next());
        word.flatten()
            .map(str::to_owned)
            .ok_or_else(|| format!("it says {:?}", text.lines().next().unwrap_or_default()))
    });
    let has_device = version.is_ok()
        && said(&path, &["-device", &format!("{DEVICE},help")]).is_ok_and(|text| text.contains("virtio-id"));
    Some(Qemu { path, version, has_device })
}

/// Finds crosvm in the search path.
pub(super) fn crosvm(system: &System) -> Option<Crosvm> {
    let path = in_path(system, "crosvm")?;
    let has_vhost_user = said(&path, &["run", "--help"]).is_ok_and(|text| text.contains("--vhost-user"));
    Some(Crosvm { path, has_vhost_user })
}
