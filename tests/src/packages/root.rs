//! A suite's root folder: packages unpacked side by side, and commands that run from it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::apt::{Apt, Archive};
use super::cache_dir;

/// The suites of Debian and Ubuntu that the tests use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Suite {
    /// Debian 12: kernel 6.1. Its Mesa is too old for today's Venus.
    Bookworm,
    /// Debian 13: kernel 6.12, Mesa 25.0.
    Trixie,
    /// The coming release: kernel 7.x, Mesa 26.1. QEMU, llama.cpp and the software Vulkan driver come from this suite, too.
    Testing,
    /// The suite that comes after: Mesa 26.2.
    Unstable,
    /// Ubuntu 22.04: Mesa 23.2.
    Jammy,
    /// Ubuntu 24.04 as released: Mesa 24.0.
    Noble,
}

impl Suite {
    /// Debian's suites with a current Mesa, oldest first.
    pub const ALL: [Self; 3] = [Self::Trixie, Self::Testing, Self::Unstable];

    /// Ubuntu's suites, oldest first.
    pub const UBUNTU: [Self; 2] = [Self::Jammy, Self::Noble];

    /// The suite's name in the archive.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Testing => "testing",
            Self::Unstable => "unstable",
            Self::Jammy => "jammy",
            Self::Noble => "noble",
        }
    }

    /// The version of its Mesa, as in 26.1.
    #[must_use]
    pub fn mesa(self) -> &'static str {
        match self {
            Self::Bookworm => "22.3",
            Self::Trixie => "25.0",
            Self::Testing => "26.1",
            Self::Unstable => "26.2",
            Self::Jammy => "23.2",
            Self::Noble => "24.0",
        }
    }
}

/// Unpacked packages of one suite.
#[derive(Clone, Debug)]
pub struct PackageRoot {
    suite: Suite,
    dir: PathBuf,
}

impl PackageRoot {
    /// The root of `suite`, holding at least `packages` and all their dependencies. Downloads missing packages.
    ///
    /// # Errors
    /// The machine has no apt, the archive cannot be reached, or it lacks one of the packages.
    pub fn with(suite: Suite, packages: &[&str]) -> Result<Self> {
        let root = Self { suite, dir: cache_dir()?.join("suites").join(suite.name()) };
        root.provide(&packages.join("+"), |apt| apt.download_closure(packages))?;
        Ok(root)
    }

    /// The root of `suite` holding the kernel that `linux-image-amd64` stands for, without the packages that would install it. Returns the kernel's
    /// release name too.
    ///
    /// # Errors
    /// As [`PackageRoot::with`].
    pub fn with_kernel(suite: Suite) -> Result<(Self, String)> {
        let root = Self { suite, dir: cache_dir()?.join("suites").join(suite.name()) };
        root.provide("kernel", |apt| {
            let image = apt
                .dependencies("linux-image-amd64")?
                .into_iter()
                .find(|name| name.starts_with("linux-image-"));
            let image = image.context("linux-image-amd64 names no kernel")?;
            // Newer suites split the image into several packages.
            let mut names: Vec<String> = apt.dependencies(&image)?;
            names.retain(|name| name.starts_with("linux-binary-") || name.starts_with("linux-modules-"));
            names.push(image.clone());
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let archives = apt.download_only(&names)?;
            fs::write(root.dir.join("kernel-release"), image.trim_start_matches("linux-image-"))?;
            Ok(archives)
        })?;
        let release = fs::read_to_string(root.dir.join("kernel-release"))?;
        Ok((root, release))
    }

    /// The suite this root is made of.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The file or folder that a package installs as `/{relative}`.
    #[must_use]
    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.join("root").join(relative)
    }

    /// The path inside the root of a file that lies there.
    ///
    /// # Errors
    /// The file is not part of this root.
    pub fn relative(&self, file: &Path) -> Result<PathBuf> {
        let inside = file.strip_prefix(self.path(""));
        Ok(inside
            .with_context(|| format!("{} is not part of {}", file.display(), self.suite.name()))?
            .to_owned())
    }

    /// A copy of its libraries in a folder that other users may enter; hard links where that is possible.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn copy_to(&self, folder: &Path) -> Result<Self> {
        let copy = Self { suite: self.suite, dir: folder.to_owned() };
        let libraries = copy.libraries();
        fs::create_dir_all(libraries.parent().context("libraries lie in a folder")?)?;
        let cp = |how| Command::new("cp").args([how, "-T"]).args([&self.libraries(), &libraries]).output();
        let mut copied = cp("-al")?;
        if !copied.status.success() {
            // The folder is on another file system; the incomplete copy is filled up.
            copied = cp("-a")?;
        }
        ensure!(copied.status.success(), "{} cannot be filled: {copied:?}", folder.display());
        Ok(copy)
    }

    /// The folder in which the root's shared libraries lie.
    #[must_use]
    pub fn libraries(&self) -> PathBuf {
        self.path("usr/lib/x86_64-linux-gnu")
    }

    /// The root's dynamic loader.
    #[must_use]
    pub fn loader(&self) -> PathBuf {
        self.libraries().join("ld-linux-x86-64.so.2")
    }

    /// A command that runs `program` with this root's libraries: a name in `usr/bin`, or a path that begins with `/` there.
    ///
    /// # Errors
    /// The root has no such program.
    pub fn command(&self, program: &str) -> Result<Command> {
        self.command_with_libraries(program, &[])
    }

    /// A command that runs `program` like [`PackageRoot::command`]; libraries that this root lacks are looked for in `more`.
    ///
    /// # Errors
    /// The root has no such program.
    pub fn command_with_libraries(&self, program: &str, more: &[PathBuf]) -> Result<Command> {
        let file = self.program(program);
        ensure!(file.exists(), "{} has no {program}", self.suite.name());
        Ok(self.command_of(&file, more))
    }

    /// A command that runs `executable`, from any place, with this root's libraries and then those in `more`.
    #[must_use]
    pub fn command_of(&self, executable: &Path, more: &[PathBuf]) -> Command {
        let mut command = Command::new(self.loader());
        command
            .arg("--library-path")
            .arg(self.library_path(more))
            .arg("--argv0")
            .args([executable, executable]);
        command
    }

    /// The path at which the root has `program`, if it does: a name in `usr/bin`, or a path that begins with `/`.
    #[must_use]
    pub fn program(&self, program: &str) -> PathBuf {
        match program.strip_prefix('/') {
            Some(path) => self.path(path),
            None => self.path("usr/bin").join(program),
        }
    }

    /// The search path for this root's libraries, followed by `more`.
    #[must_use]
    pub fn library_path(&self, more: &[PathBuf]) -> OsString {
        let own = [self.libraries(), self.libraries().join("llama")];
        let paths: Vec<&Path> = own.iter().chain(more).map(PathBuf::as_path).collect();
        std::env::join_paths(paths).expect("cache paths hold no colon")
    }

    /// A manifest for the Vulkan loader that names this root's `driver` ("lvp", "virtio") by its full path.
    ///
    /// # Errors
    /// The root has no such driver.
    pub fn driver_manifest(&self, driver: &str) -> Result<PathBuf> {
        let library = self.libraries().join(format!("libvulkan_{driver}.so"));
        ensure!(library.exists(), "{} has no Vulkan driver {driver}", self.suite.name());
        self.manifest(&library, &format!("{driver}.json"))
    }

    /// A manifest for the Vulkan loader that names a driver from elsewhere, which is to run with this root's libraries.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn foreign_manifest(&self, library: &Path) -> Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        library.hash(&mut hasher);
        self.manifest(library, &format!("foreign-{:016x}.json", hasher.finish()))
    }

    fn manifest(&self, library: &Path, name: &str) -> Result<PathBuf> {
        let manifest = self.dir.join(name);
        let text = format!(
            r#"{{"file_format_version": "1.0.1", "ICD": {{"library_path": {library:?}, "api_version": "1.4.0"}}}}"#
        );
        let is_readable =
            |file: &Path| fs::metadata(file).is_ok_and(|file| file.permissions().mode() & 0o4 != 0);
        if is_readable(&manifest) && fs::read_to_string(&manifest).is_ok_and(|present| present == text) {
            return Ok(manifest);
        }
        // Renamed into place: other tests may be reading it.
        let fresh = tempfile::NamedTempFile::new_in(&self.dir)?;
        fs::write(fresh.path(), text)?;
        // Temporary files are private, and a driver may be loaded by another user.
        fs::set_permissions(fresh.path(), fs::Permissions::from_mode(0o644))?;
        fresh.persist(&manifest)?;
        Ok(manifest)
    }

    /// Downloads and unpacks once per `what`; a stamp records that it is complete. Safe to call from several processes.
    fn provide(&self, what: &str, download: impl Fn(&Apt) -> Result<Vec<Archive>>) -> Result<()> {
        let stamp = self.dir.join("stamps").join(what);
        if stamp.exists() {
            return Ok(());
        }
        for folder in ["stamps", "unpacked", "root"] {
            let folder = self.dir.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let lock = File::create(self.dir.join("lock"))?;
        lock.lock().context("cannot lock the package cache")?;
        if stamp.exists() {
            return Ok(());
        }
        let apt = Apt::new(self.dir.join("apt"), self.suite)?;
        let archives = download(&apt).or_else(|first_failure| {
            // The archive drops old versions: lists fetched some time ago may name files that no longer exist.
            eprintln!("packages: {}: {first_failure:#}; trying again with fresh lists", self.suite.name());
            apt.update()?;
            download(&apt)
        })?;
        // apt lists the archives that it had to download in this run. An earlier run that failed or was interrupted may have left others.
        let left = apt.archives_left()?;
        self.unpack(left.iter().chain(archives.iter().map(|archive| &archive.file)))?;
        if Suite::UBUNTU.contains(&self.suite) {
            self.merge_usr()?;
        }
        self.link_ggml_backends()?;
        fs::write(stamp, "")?;
        Ok(())
    }

    /// Moves files below `/usr`: Ubuntu's packages of those years have files outside of `/usr`, at paths that are links on a system.
    fn merge_usr(&self) -> Result<()> {
        for folder in ["lib", "lib64"].into_iter().filter(|folder| self.path(folder).is_dir()) {
            let status = Command::new("cp")
                .arg("-aT")
                .args([self.path(folder), self.path("usr").join(folder)])
                .status()
                .context("cannot run cp")?;
            ensure!(status.success(), "/{folder} of {} cannot be copied below /usr", self.suite.name());
        }
        Ok(())
    }

    fn unpack<'a>(&self, archives: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
        let unpacked = self.dir.join("unpacked");
        let todo: BTreeSet<&PathBuf> = archives
            .filter(|archive| !archive.file_name().is_some_and(|name| unpacked.join(name).exists()))
            .collect();
        eprintln!("packages: {}: unpacking {} packages", self.suite.name(), todo.len());
        for archive in todo {
            let status = Command::new("dpkg-deb")
                .arg("-x")
                .args([archive, &self.dir.join("root")])
                .status()
                .context("cannot run dpkg-deb")?;
            if !status.success() {
                // The next try must not find a damaged download again.
                fs::remove_file(archive).ok();
                bail!("{} could not be unpacked: run the command again", archive.display());
            }
            if let Some(name) = archive.file_name() {
                fs::write(unpacked.join(name), "")?;
            }
        }
        Ok(())
    }

    /// ggml looks for its backends in a folder below `/usr` and beside the running executable. Run through the loader,
    /// the executable is the loader, so the backends must be found in its folder.
    fn link_ggml_backends(&self) -> Result<()> {
        let Ok(versions) = fs::read_dir(self.libraries().join("ggml")) else { return Ok(()) };
        for version in versions {
            for backend in fs::read_dir(version?.path())? {
                let backend = backend?;
                let link = self.libraries().join(backend.file_name());
                if !link.exists() {
                    std::os::unix::fs::symlink(backend.path(), link)?;
                }
            }
        }
        Ok(())
    }
}
