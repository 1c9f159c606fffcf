//! What is run: the daemon and the tenants' program, with the drivers of the package cache or of this machine.

use crate::daemon;
use crate::packages::{ClientRoot, Device, Suite};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the programs and drivers are.
#[derive(Clone, Debug)]
pub enum Place {
    /// The daemon on the software driver, tenants on Mesa of the package cache.
    Packages {
        /// The tenants' program.
        tenant: PathBuf,
        /// The daemon's executable, if not that of the profile of this program.
        daemon: Option<PathBuf>,
    },
    /// A machine prepared by hand, such as a GPU host.
    Machine {
        /// The daemon's executable; it gets this process's environment.
        daemon: PathBuf,
        /// The tenants' program.
        tenant: PathBuf,
        /// The manifest of Mesa's Venus driver.
        venus: PathBuf,
    },
}

impl Place {
    /// The daemon, without options.
    ///
    /// # Errors
    /// It does not build, or the packages cannot be had.
    pub fn daemon(&self) -> Result<Command> {
        match self {
            Self::Packages { daemon: Some(daemon), .. } => daemon::command_of(daemon),
            Self::Packages { daemon: None, .. } => daemon::command(),
            Self::Machine { daemon, .. } => Ok(Command::new(daemon)),
        }
    }

    /// A tenant on the device behind a bridge.
    ///
    /// # Errors
    /// The packages cannot be had.
    pub fn tenant(&self, socket: &Path) -> Result<Command> {
        match self {
            Self::Packages { tenant, .. } => {
                ClientRoot::open(Suite::Testing)?.own(tenant, Device::Venus(socket))
            }
            Self::Machine { tenant, venus, .. } => {
                let mut command = Command::new(tenant);
                command.env("VK_DRIVER_FILES", venus).env("VN_DEBUG", "vtest");
                command.env("VTEST_SOCKET_NAME", socket).env_remove("LD_LIBRARY_PATH");
                Ok(command)
            }
        }
    }

    /// A tenant on the host's driver, where that is a GPU's.
    #[must_use]
    pub fn native(&self) -> Option<Command> {
        match self {
            Self::Packages { .. } => None,
            Self::Machine { tenant, .. } => Some(Command::new(tenant)),
        }
    }
}
