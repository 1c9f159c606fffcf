//! Builds guests: one suite's kernel and an initramfs with its Venus driver and programs to run on it.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::BufWriter;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;

use super::cpio::Archive;
use super::elf;
use super::modules;
use crate::packages::{PackageRoot, Suite, cache_dir};

/// A bootable guest.
pub struct Guest {
    suite: Suite,
    kernel_release: String,
    kernel: PathBuf,
    /// The initramfs without a command; see [`Script`]. The file has no name, so it disappears with this process.
    initramfs: File,
}

/// The work of a guest: a shell script, and files that it finds in the root folder.
#[derive(Clone, Debug, Default)]
pub struct Script {
    text: String,
    files: Vec<(String, Vec<u8>)>,
}

/// The path at which a guest with the software driver has its manifest for the Vulkan loader.
pub const LAVAPIPE: &str = "/usr/share/vulkan/icd.d/lvp_icd.json";

/// The folder of the programs' shared libraries in the guest's own suite, and the prefix of the folder of a second one beside it.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const SECOND: &str = "testing/";

impl Guest {
    /// Builds the guest of `suite`; downloads packages that are not in the cache.
    ///
    /// # Errors
    /// Packages cannot be had, or lack a file that the guest needs.
    pub fn build(suite: Suite) -> Result<Arc<Self>> {
        Self::build_with_kernel(suite, suite)
    }

    /// Builds the guest of `suite` like [`Guest::build`], with the kernel of another suite. A process builds each guest once.
    ///
    /// # Errors
    /// As [`Guest::build`].
    pub fn build_with_kernel(suite: Suite, kernel: Suite) -> Result<Arc<Self>> {
        type Guests = HashMap<(Suite, Suite), Arc<Guest>>;
        static GUESTS: LazyLock<Mutex<Guests>> = LazyLock::new(Mutex::default);
        let mut guests = GUESTS.lock();
        if let Some(guest) = guests.get(&(suite, kernel)) {
            return Ok(Arc::clone(guest));
        }
        let guest = Arc::new(Self::build_anew(suite, kernel)?);
        guests.insert((suite, kernel), Arc::clone(&guest));
        Ok(guest)
    }

    fn build_anew(suite: Suite, kernel: Suite) -> Result<Self> {
        let (kernel_root, kernel_release) = PackageRoot::with_kernel(kernel)?;
        let root = PackageRoot::with(suite, &["libvulkan1", "mesa-vulkan-drivers", "vulkan-tools"])?;
        // Older packages keep the modules outside /usr, and the kernel outside the modules' folder.
        let places = [format!("usr/lib/modules/{kernel_release}"), format!("lib/modules/{kernel_release}")];
        let modules = first_present(&kernel_root, &places).context("the kernel package has no modules")?;
        let places = [format!("{}/vmlinuz", places[0]), format!("boot/vmlinuz-{kernel_release}")];
        let kernel = first_present(&kernel_root, &places).context("the kernel package has no kernel")?;
        let busybox = PackageRoot::with(Suite::Testing, &["busybox-static"])?.path("usr/bin/busybox");
        let llama = PackageRoot::with(llama_suite(suite), &["llama.cpp", "libggml0-backend-vulkan"])?;
        eprintln!("guest: {}: building the initramfs (kernel {kernel_release})", suite.name());

        let folder = cache_dir()?.join("guests");
        fs::create_dir_all(&folder)?;
        let initramfs = tempfile::tempfile_in(&folder)?;
        let mut archive = Archive::new(BufWriter::new(initramfs.try_clone()?));
        for name in ["proc", "sys", "dev", "tmp"] {
            archive.folder(name)?;
        }
        archive.file("init", include_bytes!("init.sh"), true)?;
        archive.file("bin/busybox", &fs::read(&busybox).context("busybox-static has no busybox")?, true)?;
        add_modules(&mut archive, &modules, &busybox)?;
        add_vulkan(&mut archive, &root)?;
        add_llama(&mut archive, &llama, if llama.suite() == suite { "" } else { SECOND })?;
        archive.finish()?;

        Ok(Self { suite, kernel_release, kernel, initramfs })
    }

    /// The suite the guest is made of.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The kernel's release name, as `uname -r` prints it.
    #[must_use]
    pub fn kernel_release(&self) -> &str {
        &self.kernel_release
    }

    /// The kernel image.
    #[must_use]
    pub fn kernel(&self) -> &Path {
        &self.kernel
    }

    /// Writes to `path` the initramfs that runs `script`: the kernel unpacks archives that follow one another.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_initramfs(&self, script: &Script, path: &Path) -> Result<()> {
        fs::copy(format!("/proc/self/fd/{}", self.initramfs.as_raw_fd()), path)?;
        let file = File::options().append(true).open(path)?;
        let mut archive = Archive::new(BufWriter::new(file));
        archive.file("command", script.text.as_bytes(), true)?;
        for (name, content) in &script.files {
            archive.file(name, content, true)?;
        }
        Ok(archive.finish()?)
    }
}

impl Script {
    /// A script for the guest's shell.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), files: Vec::new() }
    }

    /// Adds a file, which the guest finds as `/{name}`.
    #[must_use]
    pub fn with_file(mut self, name: &str, content: Vec<u8>) -> Self {
        self.files.push((name.to_owned(), content));
        self
    }

    /// Adds the software driver of a guest's suite, so that the guest can be a host itself; its manifest is at [`LAVAPIPE`].
    ///
    /// # Errors
    /// The packages cannot be had.
    pub fn with_software_driver(mut self, guest: &Guest) -> Result<Self> {
        let root = PackageRoot::with(guest.suite, &["libvulkan1", "mesa-vulkan-drivers", "vulkan-tools"])?;
        let driver = root.libraries().join("libvulkan_lvp.so");
        let manifest = root.path(LAVAPIPE.trim_start_matches('/'));
        for file in elf::libraries(&root, &driver)?.into_iter().chain([driver, manifest]) {
            let name = root.relative(&file)?.to_string_lossy().into_owned();
            self = self.with_file(&name, fs::read(&file)?);
        }
        Ok(self)
    }
}

/// Debian 13 has no llama.cpp; testing's runs there with testing's C library, on Debian 13's kernel and driver.
fn llama_suite(suite: Suite) -> Suite {
    if suite == Suite::Trixie { Suite::Testing } else { suite }
}

fn first_present(root: &PackageRoot, places: &[String]) -> Option<PathBuf> {
    places.iter().map(|place| root.path(place)).find(|path| path.exists())
}

type Initramfs = Archive<BufWriter<File>>;

fn add_modules(archive: &mut Initramfs, folder: &Path, busybox: &Path) -> Result<()> {
    let mut order = String::new();
    for module in modules::in_load_order(folder, busybox, &["virtio_pci", "virtio_gpu"])? {
        archive.file(&format!("modules/{}.ko", module.name), &module.object, false)?;
        order.push_str(&module.name);
        order.push('\n');
    }
    ensure!(order.contains("virtio_gpu"), "the kernel has no virtio-gpu driver");
    Ok(archive.file("modules/order", order.as_bytes(), false)?)
}

fn add_vulkan(archive: &mut Initramfs, root: &PackageRoot) -> Result<()> {
    let libraries = Path::new(LIBRARIES);
    let files = [
        Path::new("usr/bin/vulkaninfo"),
        &libraries.join("libvulkan.so.1"),
        &libraries.join("libvulkan_virtio.so"),
    ];
    add_with_libraries(archive, root, "", &files)?;
    let manifest = "usr/share/vulkan/icd.d/virtio_icd.json";
    archive.file(manifest, &fs::read(root.path(manifest))?, false)?;
    Ok(archive.symlink("lib64/ld-linux-x86-64.so.2", &format!("/{LIBRARIES}/ld-linux-x86-64.so.2"))?)
}

/// Adds llama.cpp below `prefix`. Its Vulkan and processor back ends stay at the path where it looks for them.
fn add_llama(archive: &mut Initramfs, root: &PackageRoot, prefix: &str) -> Result<()> {
    let libraries = Path::new(LIBRARIES);
    let backends = "ggml/backends0";
    let mut files = vec![libraries.join("libvulkan.so.1")];
    for backend in ["libggml-vulkan.so", "libggml-cpu-x64.so"] {
        let relative = libraries.join(backends).join(backend);
        let present = root.path(&relative.to_string_lossy());
        archive.file(&relative.to_string_lossy(), &fs::read(&present)?, true)?;
        for library in elf::libraries(root, &present)? {
            files.push(root.relative(&library)?);
        }
    }
    for program in ["llama-completion", "llama-bench"] {
        let path = Path::new("usr/bin").join(program);
        let guest_libraries = format!("/{prefix}{LIBRARIES}:/{prefix}{LIBRARIES}/llama:/{LIBRARIES}");
        let start = format!(
            "#!/bin/sh\nexec /{prefix}{LIBRARIES}/ld-linux-x86-64.so.2 --library-path {guest_libraries} /{prefix}{} \"$@\"\n",
            path.display()
        );
        archive.file(&format!("bin/{program}"), start.as_bytes(), true)?;
        files.push(path);
    }
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    add_with_libraries(archive, root, prefix, &files)
}

/// Adds `files`, relative to `root`, and the libraries they load, below `prefix`.
fn add_with_libraries(
    archive: &mut Initramfs,
    root: &PackageRoot,
    prefix: &str,
    files: &[&Path],
) -> Result<()> {
    let mut all = BTreeSet::new();
    for file in files {
        let file = root.path(&file.to_string_lossy());
        for library in elf::libraries(root, &file)? {
            all.insert(root.relative(&library)?);
        }
        all.insert(root.relative(&file)?);
    }
    for file in all {
        let name = file.to_string_lossy();
        let content = fs::read(root.path(&name)).with_context(|| format!("cannot read {name}"))?;
        archive.file(&format!("{prefix}{name}"), &content, true)?;
    }
    Ok(())
}
