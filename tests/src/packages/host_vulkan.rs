//! The Vulkan driver the daemon under test runs on: Debian testing's lavapipe, or the machine's own driver.
//!
//! lavapipe comes from the package cache rather than from the host, so that every machine tests against the same, current driver and needs none
//! installed.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::relink::set_interpreter;
use super::root::{PackageRoot, Suite};
use super::twin;
use crate::program;

/// The Vulkan driver that the daemon runs on.
#[derive(Clone, Debug)]
pub enum HostVulkan {
    /// The driver that the machine has, whichever it is: a real GPU.
    System,
    /// The software driver of the package cache.
    Lavapipe(PackageRoot),
    /// The software driver below the Khronos validation layer, which prints an error for each misuse of Vulkan to standard output.
    Validated(PackageRoot),
    /// The software driver in processes whose C library never hands out memory that is zero by chance.
    Poisoned(PackageRoot),
    /// The software driver twice, as two GPUs; the second is in the folder.
    Twins(PackageRoot, Arc<TempDir>),
    /// The software driver below a layer of this name, in this folder; the layer adds a feature that no software driver has.
    Layered(PackageRoot, Arc<TempDir>, &'static str),
}

/// The variables by which a service manager describes a service to its processes. If the tests run as a service, the daemon is not that service.
const OF_A_SERVICE: [&str; 8] = [
    "JOURNAL_STREAM",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// The layer's name in its manifest.
const VALIDATION: &str = "VK_LAYER_KHRONOS_validation";
/// The name of the layer of a memory type that no processor can map.
const HIDDEN_MEMORY: &str = "VK_LAYER_hidden_memory";
/// The name of the layer of small floats.
const SMALL_FLOATS: &str = "VK_LAYER_small_floats";

impl HostVulkan {
    /// The software driver; downloads it when it is not in the cache.
    ///
    /// # Errors
    /// The packages cannot be had.
    pub fn lavapipe() -> Result<Self> {
        Ok(Self::Lavapipe(PackageRoot::with(Suite::Testing, super::client::VULKAN_PACKAGES)?))
    }

    /// The software driver below the validation layer; downloads both when they are not in the cache.
    ///
    /// # Errors
    /// The packages cannot be had.
    pub fn validated() -> Result<Self> {
        PackageRoot::with(Suite::Testing, super::client::VULKAN_PACKAGES)?;
        Ok(Self::Validated(PackageRoot::with(Suite::Testing, &["vulkan-validationlayers"])?))
    }

    /// The software driver twice, as two GPUs with UUIDs of their own; downloads it when it is not in the cache.
    ///
    /// # Errors
    /// The packages cannot be had, or have no UUID that can be changed.
    pub fn twins() -> Result<Self> {
        let root = PackageRoot::with(Suite::Testing, super::client::VULKAN_PACKAGES)?;
        let folder = TempDir::new()?;
        twin::make(&root, folder.path())?;
        Ok(Self::Twins(root, Arc::new(folder)))
    }

    /// The software driver with the extensions of small floats, for programs that make no device with them; `layer` is the library built of
    /// `tests/examples/small_floats_layer.rs`.
    ///
    /// # Errors
    /// The packages cannot be had, or the layer cannot be copied.
    pub fn small_floats(layer: &Path) -> Result<Self> {
        let extension = |name| serde_json::json!({ "name": name, "spec_version": "1", "entrypoints": [] });
        let extensions = ["VK_KHR_shader_bfloat16", "VK_EXT_shader_float8"].map(extension);
        Self::layered(layer, SMALL_FLOATS, &serde_json::json!(extensions))
    }

    /// The software driver with a memory type that no processor can map; `layer` is the library built of `tests/examples/hidden_memory_layer.rs`.
    ///
    /// # Errors
    /// The packages cannot be had, or the layer cannot be copied.
    pub fn hidden_memory(layer: &Path) -> Result<Self> {
        Self::layered(layer, HIDDEN_MEMORY, &serde_json::json!([]))
    }

    /// The software driver below a layer, which adds extensions.
    fn layered(layer: &Path, name: &'static str, extensions: &serde_json::Value) -> Result<Self> {
        let root = PackageRoot::with(Suite::Testing, super::client::VULKAN_PACKAGES)?;
        let library = "liblayer_of_a_test.so";
        let folder = TempDir::new()?;
        let [manifest_file, library_file] = ["layer.json", library].map(|name| folder.path().join(name));
        let manifest = serde_json::json!({ "file_format_version": "1.2.0", "layer": {
            "name": name, "type": "GLOBAL", "library_path": library, "api_version": "1.3.0",
            "implementation_version": "1", "description": "a layer of a test",
            "device_extensions": extensions,
            "disable_environment": { "DISABLE_LAYER_OF_A_TEST": "1" },
        }});
        fs::write(&manifest_file, manifest.to_string())?;
        fs::copy(layer, &library_file)?;
        // Another user may load the layer.
        for path in [folder.path(), &library_file, &manifest_file] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self::Layered(root, Arc::new(folder), name))
    }

    /// A command that runs `executable`, built on this machine, with this driver. The executable may start itself
    /// again through `/proc/self/exe` as long as it passes its environment on.
    ///
    /// # Errors
    /// The executable cannot be read, or the copy of it not written.
    pub fn command(&self, executable: &Path) -> Result<Command> {
        let mut command = self.with_driver(executable)?;
        OF_A_SERVICE.iter().for_each(|name| _ = command.env_remove(name));
        Ok(command)
    }

    fn with_driver(&self, executable: &Path) -> Result<Command> {
        let root = match self {
            Self::System => return Ok(Command::new(executable)),
            Self::Lavapipe(root) | Self::Validated(root) | Self::Poisoned(root) => root,
            Self::Twins(root, _) | Self::Layered(root, ..) => root,
        };
        let mut command = Command::new(relinked(executable, root)?);
        super::use_drivers(&mut command, root.driver_manifest("lvp")?);
        command.env("LD_LIBRARY_PATH", root.library_path(&[]));
        if let Self::Poisoned(_) = self {
            // glibc fills allocated and freed memory with this byte, or its complement.
            command.env("MALLOC_PERTURB_", "90");
        }
        if let Self::Twins(root, folder) = self {
            // Workers see the folders of the library path.
            let folder = folder.path();
            let manifests = [root.driver_manifest("lvp")?, folder.join(twin::MANIFEST)];
            command
                .env("VK_DRIVER_FILES", std::env::join_paths(manifests)?)
                .env("LD_LIBRARY_PATH", root.library_path(&[folder.to_owned()]));
        }
        if let Self::Layered(root, folder, name) = self {
            let folder = folder.path();
            command
                .env("LD_LIBRARY_PATH", root.library_path(&[folder.to_owned()]))
                .env("VK_IMPLICIT_LAYER_PATH", folder)
                .env("VK_LOADER_LAYERS_ALLOW", name);
        }
        if let Self::Validated(root) = self {
            // The manifest names the library alone; the loader finds it by the library path.
            command
                .env("VK_LAYER_PATH", root.path("usr/share/vulkan/explicit_layer.d"))
                .env("VK_INSTANCE_LAYERS", VALIDATION)
                .env("VK_LAYER_REPORT_FLAGS", "error,info");
        }
        Ok(command)
    }
}

/// The copy of `executable` that uses `root`'s loader, made when the executable is newer.
fn relinked(executable: &Path, root: &PackageRoot) -> Result<PathBuf> {
    // One thread writes at a time, because each would write the same file.
    static WRITING: Mutex<()> = Mutex::new(());
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let name = executable.file_name().context("an executable has a name")?.to_string_lossy();
    // Each package cache has a copy of its own.
    let mut hasher = DefaultHasher::new();
    root.loader().hash(&mut hasher);
    let copy = executable.with_file_name(format!("{name}.{}-{:016x}", root.suite().name(), hasher.finish()));
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let source =
        modified(executable).with_context(|| format!("{} has not been built", executable.display()))?;
    if modified(&copy).is_ok_and(|copied| copied > source) {
        return Ok(copy);
    }
    let mut elf = fs::read(executable).with_context(|| format!("cannot read {}", executable.display()))?;
    set_interpreter(&mut elf, &root.loader())
        .with_context(|| format!("cannot relink {}", executable.display()))?;
    // The new copy is written beside the old one and renamed, because another test may be starting the old copy right now.
    let folder = TempDir::new_in(copy.parent().context("an executable lies in a folder")?)?;
    let fresh = folder.path().join("fresh");
    program::executable::write(&fresh, &elf)?;
    fs::rename(fresh, &copy).with_context(|| format!("cannot write {}", copy.display()))?;
    Ok(copy)
}
