//! The places where a client runs: with programs and drivers of the package cache, or with those of a machine prepared by hand.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::{Files, Program, WHEELS};
use crate::packages::{ClientRoot, Device, Python, Suite};

/// Clients of the package cache with one suite's Venus driver.
#[derive(Clone, Debug)]
pub struct Packages {
    root: ClientRoot,
    python: Python,
}

/// A machine on which the clients are installed; a GPU host, or a guest.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The variables that select the Vulkan driver, such as `VK_DRIVER_FILES`.
    pub environment: Vec<(String, String)>,
    /// The interpreter that has the Python packages.
    pub python: PathBuf,
}

/// A place where a client runs.
pub enum Place<'a> {
    /// The package cache, on a device.
    Packages(&'a Packages, Device<'a>),
    /// A prepared machine.
    Machine(&'a Machine),
}

impl Packages {
    /// Programs, and Mesa of `suite`; downloads packages that are not in the cache.
    ///
    /// # Errors
    /// The packages cannot be had.
    pub fn open(suite: Suite) -> Result<Self> {
        Self::with(ClientRoot::open(suite)?)
    }

    /// Programs, and the Mesa of `root`; downloads packages that are not in the cache.
    ///
    /// # Errors
    /// The packages cannot be had.
    pub fn with(root: ClientRoot) -> Result<Self> {
        Ok(Self { root: root.with_more_programs()?, python: Python::with(&WHEELS)? })
    }
}

impl Place<'_> {
    /// A command that runs `program` here, without arguments.
    pub(super) fn command(&self, program: Program, files: &Files) -> Result<Command> {
        let mut command = match (self, program) {
            (Self::Packages(packages, device), Program::Debian(name)) => {
                packages.root.command(name, *device)?
            }
            (Self::Packages(packages, device), Program::Python(_)) => {
                packages.root.python(&packages.python, *device)?
            }
            (Self::Machine(machine), Program::Debian(name)) => machine.command(name.into()),
            (Self::Machine(machine), Program::Python(_)) => machine.command(machine.python.clone()),
        };
        if let Program::Python(script) = program {
            command.arg(files.path().join(script));
        }
        Ok(command)
    }
}

impl Machine {
    fn command(&self, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}
