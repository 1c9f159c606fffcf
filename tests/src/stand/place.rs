//! The places from which daemon, drivers and programs come: the package cache, or a machine that was prepared by hand.

use crate::daemon;
use crate::packages::{ClientRoot, Device, Suite};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that is run, and the drivers with which it is run.
#[derive(Clone, Debug)]
pub struct Place {
    /// The program that is measured, built on this machine.
    pub program: PathBuf,
    /// The daemon and the drivers of both sides.
    pub drivers: Drivers,
    /// The variables that programs in guests find in their environment.
    pub settings: Vec<Setting>,
    /// The daemons of single guests.
    pub daemons: Vec<OwnDaemon>,
}

/// A daemon that only one guest has, so that daemons can be compared side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnDaemon {
    /// The name of the guest's Mesa.
    pub guest: String,
    /// The daemon's executable, if this guest has another one than the other guests.
    pub program: Option<PathBuf>,
    /// The daemon's options.
    pub options: Vec<String>,
}

/// A variable of the environment of programs in a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The name of the guest's Mesa.
    pub guest: String,
    /// The variable.
    pub variable: String,
    /// The variable's value.
    pub value: String,
}

/// The daemon, the host's driver, and the Venus drivers of guests.
#[derive(Clone, Debug)]
pub enum Drivers {
    /// The daemon on the software driver, guests with Mesa of the package cache.
    Packages {
        /// The daemon's executable, if not that of the profile of this program.
        daemon: Option<PathBuf>,
        /// The name of each guest's Mesa, and the suite that it is from.
        mesas: Vec<(String, Suite)>,
    },
    /// A machine prepared by hand, such as a GPU host: programs on the host get this process's environment.
    Machine {
        /// The daemon's executable.
        daemon: PathBuf,
        /// The name of each guest's Mesa, and the manifest of its Venus driver.
        mesas: Vec<(String, PathBuf)>,
    },
}

impl Place {
    /// The package cache, with guests that have Debian testing's Mesa.
    #[must_use]
    pub fn packages(program: PathBuf, daemon: Option<PathBuf>) -> Self {
        let mesas = vec![(default_name(Suite::Testing), Suite::Testing)];
        Self {
            program,
            drivers: Drivers::Packages { daemon, mesas },
            settings: Vec::new(),
            daemons: Vec::new(),
        }
    }

    /// A prepared machine, with one manifest of Mesa's Venus driver.
    #[must_use]
    pub fn machine(program: PathBuf, daemon: PathBuf, venus: PathBuf) -> Self {
        let mesas = vec![("guest".into(), venus)];
        Self {
            program,
            drivers: Drivers::Machine { daemon, mesas },
            settings: Vec::new(),
            daemons: Vec::new(),
        }
    }

    /// Returns whether this is a machine that was prepared by hand.
    #[must_use]
    pub fn is_machine(&self) -> bool {
        matches!(self.drivers, Drivers::Machine { .. })
    }

    /// The names of the Mesas that guests have.
    #[must_use]
    pub fn mesas(&self) -> Vec<String> {
        match &self.drivers {
            Drivers::Packages { mesas, .. } => mesas.iter().map(|(name, _)| name.clone()).collect(),
            Drivers::Machine { mesas, .. } => mesas.iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    /// The daemon, without options.
    ///
    /// # Errors
    /// The daemon does not build, or the packages cannot be had.
    pub fn daemon(&self) -> Result<Command> {
        match &self.drivers {
            Drivers::Packages { daemon: Some(daemon), .. } => daemon::command_of(daemon),
            Drivers::Packages { daemon: None, .. } => daemon::command(),
            Drivers::Machine { daemon, .. } => Ok(Command::new(daemon)),
        }
    }

    /// The daemon of a guest, with the options that this guest alone has.
    ///
    /// # Errors
    /// As [`Place::daemon`].
    pub fn daemon_of(&self, guest: &str) -> Result<Command> {
        let Some(own) = self.daemons.iter().find(|own| own.guest == guest) else { return self.daemon() };
        let mut command = match &own.program {
            None => self.daemon()?,
            Some(program) if self.is_machine() => Command::new(program),
            Some(program) => daemon::command_of(program)?,
        };
        command.args(&own.options);
        Ok(command)
    }

    /// The program on the device behind a bridge, with the Mesa of this number.
    ///
    /// # Errors
    /// The packages cannot be had, or there is no such Mesa.
    pub fn guest(&self, mesa: usize, socket: &Path) -> Result<Command> {
        self.guest_of(&self.program, mesa, socket)
    }

    /// The program on the host's driver.
    ///
    /// # Errors
    /// The packages cannot be had.
    pub fn native(&self) -> Result<Command> {
        self.native_of(&self.program)
    }

    /// Another program like that of [`Place::guest`]: a path from the root, or a name among the packages' programs.
    ///
    /// # Errors
    /// As [`Place::guest`], or the packages have no such program.
    pub fn guest_of(&self, program: &Path, mesa: usize, socket: &Path) -> Result<Command> {
        let (name, mut command) = match &self.drivers {
            Drivers::Packages { mesas, .. } => {
                let (name, suite) = mesas.get(mesa).context("no such Mesa")?;
                (name, packaged(*suite, program, Device::Venus(socket))?)
            }
            Drivers::Machine { mesas, .. } => {
                let (name, manifest) = mesas.get(mesa).context("no such Mesa")?;
                let mut command = Command::new(program);
                command.env("VK_DRIVER_FILES", manifest).env("VN_DEBUG", "vtest");
                command.env("VTEST_SOCKET_NAME", socket).env_remove("LD_LIBRARY_PATH");
                (name, command)
            }
        };
        let own = self.settings.iter().filter(|setting| setting.guest == *name);
        command.envs(own.map(|setting| (&setting.variable, &setting.value)));
        Ok(command)
    }

    /// Another program like that of [`Place::native`], given as with [`Place::guest_of`].
    ///
    /// # Errors
    /// The packages cannot be had, or have no such program.
    pub fn native_of(&self, program: &Path) -> Result<Command> {
        match &self.drivers {
            Drivers::Packages { .. } => packaged(Suite::Testing, program, Device::Native),
            Drivers::Machine { .. } => Ok(Command::new(program)),
        }
    }
}

/// The name of a guest that has the Mesa of a suite.
#[must_use]
pub fn default_name(suite: Suite) -> String {
    format!("mesa-{}", suite.mesa())
}

fn packaged(suite: Suite, program: &Path, device: Device) -> Result<Command> {
    let root = ClientRoot::open(suite)?;
    match program.is_absolute() {
        true => root.own(program, device),
        false => root.command(&program.to_string_lossy(), device),
    }
}
