//! The daemon of the tests in a system with systemd, with its user, its folder and its units in the package's places. This module does not make the
//! package, which takes a release build.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::daemon_process::daemon_executable;
use crate::program::{LIMIT, succeed};
use crate::sources::repository;

/// The script that installs the files of [`lay_out`], whose folder is the system's `/mnt`. A daemon of one VM waits longer for the work of emulated
/// guests.
pub const INSTALL: &str = "
install -m 755 /mnt/vhost-user-vulkan /usr/bin/
install -D -m 644 -t /usr/lib/sysusers.d /mnt/packaging/sysusers.d/*
install -D -m 644 -t /usr/lib/tmpfiles.d /mnt/packaging/tmpfiles.d/*
install -D -m 644 -t /usr/lib/systemd/system /mnt/packaging/systemd/*
systemd-sysusers vhost-user-vulkan.conf
systemd-tmpfiles --create vhost-user-vulkan.conf
mkdir /etc/vhost-user-vulkan
echo 'OPTIONS=--max-submit-time 60min --max-submit-time-contended 60min' >/etc/vhost-user-vulkan/web.env
systemctl daemon-reload
";

/// Puts the daemon and the other files of its package into a folder.
///
/// # Errors
/// The daemon does not build, or a file cannot be copied.
pub fn lay_out(folder: &Path) -> Result<()> {
    let daemon = daemon_executable()?;
    fs::copy(&daemon, folder.join("vhost-user-vulkan"))
        .with_context(|| format!("copying {}", daemon.display()))?;
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(repository().join("daemon/packaging")).arg(folder);
    succeed(copy, LIMIT).map(drop)
}
