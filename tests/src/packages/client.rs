//! Unmodified Vulkan programs of a Debian suite, run on the host without a virtual machine.
//!
//! `through_vtest` uses the suite's Venus driver, which speaks Mesa's vtest protocol to a socket; `native` runs the same
//! program directly on the software driver the daemon under test uses, to compare results with.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::patched;
use super::python::Python;
use super::root::{PackageRoot, Suite};

/// Loader, drivers and vulkaninfo.
pub(super) const VULKAN_PACKAGES: &[&str] = &["libvulkan1", "mesa-vulkan-drivers", "vulkan-tools"];
/// llama.cpp with its Vulkan backend.
const LLAMA_PACKAGES: &[&str] = &["llama.cpp", "libggml0-backend-vulkan"];

/// More programs of ggml's family: the operators' own tests, and whisper.cpp.
const GGML_PACKAGES: &[&str] = &["llama.cpp-tests", "whisper.cpp-tools", "libggml0-backend-vulkan"];

/// The Vulkan device that a client shall use.
#[derive(Clone, Copy, Debug)]
pub enum Device<'a> {
    /// The software driver itself.
    Native,
    /// The suite's Venus driver, talking vtest to this socket.
    Venus(&'a Path),
}

/// One suite's Mesa with programs to run on it.
#[derive(Clone, Debug)]
pub struct ClientRoot {
    /// The packages from which the Venus driver comes.
    drivers: PackageRoot,
    /// The Venus driver, if any, that replaces the one of `drivers`.
    patched: Option<PathBuf>,
    /// Debian testing: the programs `drivers` lacks, and the software driver.
    programs: PackageRoot,
}

impl ClientRoot {
    /// Mesa of `suite` and the programs; downloads packages that are not in the cache.
    ///
    /// # Errors
    /// The packages cannot be had.
    pub fn open(suite: Suite) -> Result<Self> {
        let drivers = PackageRoot::with(suite, VULKAN_PACKAGES)?;
        PackageRoot::with(Suite::Testing, VULKAN_PACKAGES)?;
        let programs = PackageRoot::with(Suite::Testing, LLAMA_PACKAGES)?;
        Ok(Self { drivers, patched: None, programs })
    }

    /// Mesa of Debian 13 with the Venus driver of `guest-driver-patches` in the place of its own; builds it when it has changed.
    ///
    /// # Errors
    /// The packages cannot be had, or the driver not be built.
    pub fn patched() -> Result<Self> {
        Ok(Self { patched: Some(patched::patched_driver()?), ..Self::open(Suite::Trixie)? })
    }

    /// Adds the programs that only the clients' tests use.
    ///
    /// # Errors
    /// The packages cannot be had.
    pub fn with_more_programs(self) -> Result<Self> {
        PackageRoot::with(self.programs.suite(), GGML_PACKAGES)?;
        Ok(self)
    }

    /// Returns whether `program` is among the programs so far.
    #[must_use]
    pub fn has(&self, program: &str) -> bool {
        self.programs.program(program).exists()
    }

    /// Returns whether the driver is the one of `guest-driver-patches`.
    #[must_use]
    pub fn is_patched(&self) -> bool {
        self.patched.is_some()
    }

    /// The suite whose Mesa this is.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.drivers.suite()
    }

    /// `program` on the suite's Venus driver, talking vtest to `socket`.
    ///
    /// # Errors
    /// There is no such program.
    pub fn through_vtest(&self, program: &str, socket: &Path) -> Result<Command> {
        self.command(program, Device::Venus(socket))
    }

    /// `program` directly on the software driver.
    ///
    /// # Errors
    /// There is no such program.
    pub fn native(&self, program: &str) -> Result<Command> {
        self.command(program, Device::Native)
    }

    /// `program` (a name in `usr/bin` or a path that begins with `/`) on `device`.
    ///
    /// # Errors
    /// There is no such program.
    pub fn command(&self, program: &str, device: Device) -> Result<Command> {
        let mut command = if matches!(device, Device::Venus(_)) && self.drivers.program(program).exists() {
            self.drivers.command(program)?
        } else {
            // Debian 13 has no llama.cpp: take testing's, with testing's newer C library under Debian 13's driver.
            self.programs.command_with_libraries(program, &self.driver_libraries(device))?
        };
        self.use_device(&mut command, device)?;
        Ok(command)
    }

    /// `executable`, built on this machine, on `device`.
    ///
    /// # Errors
    /// The suite has no such driver.
    pub fn own(&self, executable: &Path, device: Device) -> Result<Command> {
        let root = if matches!(device, Device::Native) { &self.programs } else { &self.drivers };
        let mut command = root.command_of(executable, &[]);
        self.use_device(&mut command, device)?;
        Ok(command)
    }

    /// `python` on `device`, without arguments.
    ///
    /// # Errors
    /// The driver is missing.
    pub fn python(&self, python: &Python, device: Device) -> Result<Command> {
        let mut more = self.driver_libraries(device);
        more.push(python.libraries());
        let mut command = self.programs.command_of(&python.executable(), &more);
        python.prepare(&mut command);
        self.use_device(&mut command, device)?;
        Ok(command)
    }

    fn driver_libraries(&self, device: Device) -> Vec<PathBuf> {
        match device {
            Device::Venus(_) if self.suite() != self.programs.suite() => vec![self.drivers.libraries()],
            _ => Vec::new(),
        }
    }

    fn use_device(&self, command: &mut Command, device: Device) -> Result<()> {
        let manifest = match device {
            Device::Native => self.programs.driver_manifest("lvp")?,
            Device::Venus(socket) => {
                // Mesa logs the reason for which it gives up only at the lowest level.
                command
                    .env("VN_DEBUG", "vtest")
                    .env("VTEST_SOCKET_NAME", socket)
                    .env("MESA_LOG_LEVEL", "debug");
                match &self.patched {
                    Some(driver) => self.drivers.foreign_manifest(driver)?,
                    None => self.drivers.driver_manifest("virtio")?,
                }
            }
        };
        super::use_drivers(command, manifest);
        // ggml leaves out devices that call themselves CPUs unless they are asked for by number.
        command.env("GGML_VK_VISIBLE_DEVICES", "0");
        Ok(())
    }
}
