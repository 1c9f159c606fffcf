//! Debian packages as test material: unmodified Mesa drivers, clients, QEMU and kernels, unpacked beside the host system.
//!
//! Nothing is installed. Each Debian suite has a root folder below the user's cache folder, filled by the machine's own
//! `apt-get` under a private configuration and unpacked with `dpkg-deb`. Programs of a root run through that root's own
//! dynamic loader, so their C library may be newer than the host's. Needs no privileges.

mod apt;
mod client;
mod cross;
mod gpus;
mod host_vulkan;
mod installed;
mod mirror;
mod patched;
mod python;
mod relink;
mod root;
mod twin;

pub use client::{ClientRoot, Device};
pub use cross::cross_compiler;
pub use gpus::ListedGpu;
pub use host_vulkan::HostVulkan;
pub use installed::Installed;
pub(crate) use installed::{ENVIRONMENT, namespaces};
pub use patched::{PATCHED_PACKAGE, patched_driver, patched_package};
pub use python::{Python, Wheels};
pub use root::{PackageRoot, Suite};

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// The folder that holds everything downloaded: `$XDG_CACHE_HOME/vhost-user-vulkan`, by default below `~/.cache`.
///
/// # Errors
/// Neither `XDG_CACHE_HOME` nor `HOME` is set.
pub fn cache_dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(base) if !base.is_empty() => PathBuf::from(base),
        _ => {
            let home =
                std::env::var_os("HOME").context("set HOME or XDG_CACHE_HOME: downloads are kept there")?;
            PathBuf::from(home).join(".cache")
        }
    };
    Ok(base.join("vhost-user-vulkan"))
}

/// Calls `fetch` up to three times until it succeeds, since connections break and archives change while they are read.
fn fetched<T>(what: &str, fetch: impl Fn() -> Result<T>) -> Result<T> {
    for pause in [Duration::from_secs(2), Duration::from_secs(10)] {
        match fetch() {
            Ok(fetched) => return Ok(fetched),
            Err(error) => eprintln!("packages: {what}: {error:#}; trying again in {pause:?}"),
        }
        thread::sleep(pause);
    }
    fetch()
}

/// Has a program use the drivers of these manifests alone, and no layer, whatever this machine's environment selects, disables or adds.
fn use_drivers(command: &mut Command, manifests: impl AsRef<OsStr>) {
    for other in [
        "VK_LOADER_DRIVERS_SELECT",
        "VK_LOADER_DRIVERS_DISABLE",
        "VK_LOADER_LAYERS_ENABLE",
        "VK_LOADER_LAYERS_ALLOW",
        "VK_INSTANCE_LAYERS",
    ] {
        command.env_remove(other);
    }
    // The loader of Ubuntu 22.04 knows the former name alone.
    command.env("VK_DRIVER_FILES", &manifests).env("VK_ICD_FILENAMES", manifests);
    command.env("VK_LOADER_LAYERS_DISABLE", "~implicit~");
}
