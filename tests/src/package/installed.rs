//! A daemon that is installed in a folder, where a test can replace it by another program while a broker runs that was started from this folder.

use crate::broker::Broker;
use crate::daemon::bare_command;
use crate::program::executable;
use anyhow::Result;
use rustix::process::Pid;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A folder in which the daemon is installed, and a broker that was started from this folder.
pub struct Installed {
    /// The broker.
    pub broker: Broker,
    built: PathBuf,
    folder: TempDir,
}

impl Installed {
    /// Installs a copy of the daemon, and starts a broker with these VMs, as [`Broker::start`] does.
    ///
    /// # Errors
    /// The daemon is not built, or the broker does not start.
    pub fn start(vms: &[(&str, &str)]) -> Result<Self> {
        Self::start_with("", vms)
    }

    /// Does the same as [`Self::start`], with `top` before the VMs' tables.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(top: &str, vms: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let program = folder.path().join(NAME);
        let usual = bare_command()?;
        let built = PathBuf::from(usual.get_program());
        executable::copy(&built, &program)?;
        let mut command = Command::new(&program);
        usual.get_envs().filter_map(|(name, value)| Some((name, value?))).for_each(|(name, value)| {
            command.env(name, value);
        });
        let broker = Broker::start_command(command, top, vms)?;
        Ok(Self { broker, built, folder })
    }

    /// The daemon as it was built.
    #[must_use]
    pub fn built(&self) -> &Path {
        &self.built
    }

    /// The place of the installed program.
    #[must_use]
    pub fn program(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }

    /// Puts another copy of the daemon in the place of the program, as a package does.
    ///
    /// # Errors
    /// The system refuses.
    pub fn replace(&self) -> Result<()> {
        let new = self.folder.path().join("new");
        executable::copy(&self.built, &new)?;
        Ok(fs::rename(new, self.program())?)
    }

    /// Puts a file with these bytes and permissions in the place of the program.
    ///
    /// # Errors
    /// The system refuses.
    pub fn replace_by(&self, bytes: &[u8], mode: u32) -> Result<()> {
        let new = self.folder.path().join("new");
        executable::write(&new, bytes)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
        Ok(fs::rename(new, self.program())?)
    }

    /// Returns whether a process is of the program that is installed now.
    ///
    /// # Errors
    /// The process has ended, or no program is installed.
    pub fn is_new(&self, process: Pid) -> Result<bool> {
        let file = |path: &Path| path.metadata().map(|file| (file.dev(), file.ino()));
        let running = PathBuf::from(format!("/proc/{}/exe", process.as_raw_nonzero()));
        Ok(file(&running)? == file(&self.program())?)
    }
}

/// The name of the installed program.
const NAME: &str = "vhost-user-vulkan";
