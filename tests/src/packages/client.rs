//! Unmodified Vulkan programs of a Debian suite, run on the host without a virtual machine.
//!
//! `through_vtest` uses the suite's Venus driver, which speaks Mesa's vtest protocol to a socket; `native` runs the same
//! program directly on the software driver the daemon under test uses, to compare results with.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::root::{PackageRoot, Suite};

/// Loader, drivers and vulkaninfo.
pub(super) const VULKAN_PACKAGES: &[&str] = &["libvulkan1", "mesa-vulkan-drivers", "vulkan-tools"];
/// llama.cpp with its Vulkan backend.
const LLAMA_PACKAGES: &[&str] = &["llama.cpp", "libggml0-backend-vulkan"];

/// One suite's Mesa with programs to run on it.
#[derive(Clone, Debug)]
pub struct ClientRoot {
    /// Where the Venus driver comes from.
    drivers: PackageRoot,
    /// Debian testing: the programs `drivers` lacks, and the software driver.
    programs: PackageRoot,
}

impl ClientRoot {
    /// Mesa of `suite` and the programs; downloads what is not in the cache.
    ///
    /// # Errors
    /// The packages cannot be had.
    pub fn open(suite: Suite) -> Result<Self> {
        let drivers = PackageRoot::with(suite, VULKAN_PACKAGES)?;
        PackageRoot::with(Suite::Testing, VULKAN_PACKAGES)?;
        let programs = PackageRoot::with(Suite::Testing, LLAMA_PACKAGES)?;
        Ok(Self { drivers, programs })
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
        let mut command = if self.drivers.path("usr/bin").join(program).exists() {
            self.drivers.command(program)?
        } else {
            // Debian 13 has no llama.cpp: take testing's, with testing's newer C library under Debian 13's driver.
            self.programs.command_with_libraries(program, &[self.drivers.libraries()])?
        };
        use_driver(&mut command, &self.drivers, "virtio")?;
        command.env("VN_DEBUG", "vtest").env("VTEST_SOCKET_NAME", socket);
        Ok(command)
    }

    /// `program` directly on the software driver.
    ///
    /// # Errors
    /// There is no such program.
    pub fn native(&self, program: &str) -> Result<Command> {
        let mut command = self.programs.command(program)?;
        use_driver(&mut command, &self.programs, "lvp")?;
        Ok(command)
    }

    /// `executable`, built on this machine, on the suite's Venus driver, talking vtest to `socket`.
    ///
    /// # Errors
    /// The suite has no such driver.
    pub fn own_through_vtest(&self, executable: &Path, socket: &Path) -> Result<Command> {
        let mut command = self.drivers.command_of(executable, &[]);
        use_driver(&mut command, &self.drivers, "virtio")?;
        command.env("VN_DEBUG", "vtest").env("VTEST_SOCKET_NAME", socket);
        Ok(command)
    }
}

fn use_driver(command: &mut Command, root: &PackageRoot, driver: &str) -> Result<()> {
    command
        .env("VK_DRIVER_FILES", root.driver_manifest(driver)?)
        .env("VK_LOADER_LAYERS_DISABLE", "~implicit~")
        // ggml leaves out devices that call themselves CPUs unless they are asked for by number.
        .env("GGML_VK_VISIBLE_DEVICES", "0");
    Ok(())
}
