//! The parts of the system that a child may see, keep and call, by the family of its driver: the data files of `policy/`, and additions from the environment.

use crate::ipc::DriverFamily;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files, each with its head as documentation.
const COMMON: &str = include_str!("policy/common.toml");
const SOFTWARE: &str = include_str!("policy/software.toml");
const MESA: &str = include_str!("policy/mesa.toml");
const NVIDIA: &str = include_str!("policy/nvidia.toml");
const INIT: &str = include_str!("policy/init.toml");
const DEVICE_PROCESS: &str = include_str!("policy/device_process.toml");

/// The policy: all files that apply, put together.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Folders and files from which code may be mapped.
    libraries: Vec<String>,
    /// Folders and files to read.
    files: Vec<String>,
    /// Device nodes.
    devices: Vec<String>,
    /// Variables of the environment.
    environment: Vec<String>,
    /// Variables that are added to the environment.
    set: BTreeMap<String, String>,
    /// True if the driver reads about its own process in `/proc`.
    procfs: bool,
    /// System calls.
    pub syscalls: Syscalls,
}

/// System calls that may be made.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Syscalls {
    /// Calls made without condition.
    pub allow: BTreeSet<String>,
    /// Calls answered with an error, by the error's name: libraries try them and work without them.
    pub refuse: BTreeMap<String, BTreeSet<String>>,
    /// Calls made if an argument fits.
    pub when: Vec<When>,
}

/// A call that may be made if an argument has one of some values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The name of the call.
    pub call: String,
    /// The number of the argument, from 0.
    pub argument: u8,
    /// The bits of the argument that are compared; all by default.
    #[serde(default = "all_bits")]
    pub mask: u64,
    /// The values that the argument may have.
    pub is: Vec<u64>,
    /// The error that such a call is answered with, if it is not made.
    #[serde(default)]
    pub error: Option<String>,
}

fn all_bits() -> u64 {
    u64::MAX
}

/// The use for which a path is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// To read and to map code.
    Library,
    /// To read.
    File,
    /// To talk to a kernel driver.
    Device,
}

/// A part of the host's file system that a child sees, at the same place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    /// The path; no part of it is a symbolic link.
    pub path: PathBuf,
    /// The use of the path.
    pub used: Use,
}

/// The view of a child: parts of the host's file system, and symbolic links that lead there.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Parents before their contents.
    pub shown: Vec<Shown>,
    /// The links, each with its target.
    pub links: BTreeMap<PathBuf, PathBuf>,
    /// True if the child sees the processes of its own namespace, which is only itself.
    pub procfs: bool,
}

impl View {
    /// Returns the files that not every user may read.
    pub fn private(&self) -> impl Iterator<Item = &Path> {
        let files = self.shown.iter().filter(|part| part.used != Use::Device);
        let is_private = |part: &&Shown| part.path.metadata().is_ok_and(|file| file.mode() & 0o4 == 0);
        files.filter(is_private).map(|part| part.path.as_path())
    }
}

impl Policy {
    /// Returns the policy for a driver of a family. The Vulkan loader loads every driver whose manifest it finds, so every family includes the
    /// needs of the software driver.
    ///
    /// # Errors
    ///
    /// A file is malformed.
    pub fn of(family: DriverFamily) -> Result<Self, toml::de::Error> {
        let files: &[&str] = match family {
            DriverFamily::Software => &[COMMON, SOFTWARE],
            DriverFamily::Mesa => &[COMMON, SOFTWARE, MESA],
            DriverFamily::Nvidia => &[COMMON, SOFTWARE, NVIDIA],
            DriverFamily::Any => &[COMMON, SOFTWARE, MESA, NVIDIA],
        };
        Self::read(files)
    }

    /// Returns the policy for the device process.
    ///
    /// # Errors
    ///
    /// The file is malformed.
    pub fn of_device_process() -> Result<Self, toml::de::Error> {
        Self::read(&[DEVICE_PROCESS])
    }

    /// Returns the policy for the first process of a child's namespace.
    ///
    /// # Errors
    ///
    /// The file is malformed.
    pub fn of_init() -> Result<Self, toml::de::Error> {
        Self::read(&[INIT])
    }

    fn read(files: &[&str]) -> Result<Self, toml::de::Error> {
        files.iter().try_fold(Self::default(), |mut all, file| {
            let Self { libraries, files, devices, environment, set, procfs, syscalls } =
                toml::from_str(file)?;
            all.libraries.extend(libraries);
            all.files.extend(files);
            all.devices.extend(devices);
            all.environment.extend(environment);
            all.set.extend(set);
            all.procfs |= procfs;
            all.syscalls.allow.extend(syscalls.allow);
            all.syscalls.when.extend(syscalls.when);
            for (error, calls) in syscalls.refuse {
                all.syscalls.refuse.entry(error).or_default().extend(calls);
            }
            // Calls that one driver needs may be refused to others.
            let Syscalls { allow, refuse, .. } = &mut all.syscalls;
            refuse.values_mut().for_each(|calls| calls.retain(|call| !allow.contains(call)));
            Ok(all)
        })
    }

    /// Returns the environment of a child.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let keeps = |name: &OsStr| {
            self.environment.iter().any(|pattern| matches(pattern, &name.to_string_lossy()))
                && !name.to_str().is_some_and(|name| self.set.contains_key(name))
        };
        let kept = std::env::vars_os().filter(|(name, _)| keeps(name));
        kept.chain(self.set.iter().map(|(name, value)| (name.into(), value.into()))).collect()
    }

    /// Returns the view on this system: the paths of the policy that exist, and those that the environment names.
    pub fn view(&self) -> View {
        let mut view = View { procfs: self.procfs, ..View::default() };
        let named =
            |patterns: &[String]| patterns.iter().flat_map(|pattern| expand(pattern)).collect::<Vec<_>>();
        let mut shown = BTreeSet::new();
        let mut show = |path: &Path, used| {
            if let Ok(real) = path.canonicalize() {
                follow(path, &mut view.links);
                shown.insert(Shown { path: real, used });
            }
        };
        named(&self.libraries).iter().for_each(|path| show(path, Use::Library));
        own_libraries().iter().for_each(|path| show(path, Use::Library));
        let manifests = manifests();
        manifests.iter().flat_map(|path| libraries_of(path)).for_each(|path| show(&path, Use::Library));
        environment_paths("LD_LIBRARY_PATH").iter().for_each(|path| show(path, Use::Library));
        manifests.iter().for_each(|path| show(path, Use::File));
        named(&self.files).iter().for_each(|path| show(path, Use::File));
        named(&self.devices).iter().for_each(|path| show(path, Use::Device));
        for part in shown {
            let is_covered = |by: &Shown| {
                part.path.starts_with(&by.path) && (by.used == part.used || by.used == Use::Library)
            };
            if !view.shown.iter().any(is_covered) {
                view.shown.push(part);
            }
        }
        view.links.retain(|link, _| !view.shown.iter().any(|part| link.starts_with(&part.path)));
        view
    }
}

/// Returns whether a name fits a pattern, in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    }
}

/// Returns the paths that fit a pattern; a `*` may be in its last part.
fn expand(pattern: &str) -> Vec<PathBuf> {
    let path = Path::new(pattern);
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
        return vec![path.to_owned()];
    };
    if !name.contains('*') {
        return vec![path.to_owned()];
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| matches(name, &entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect()
}

/// Notes every symbolic link on the way to a path.
fn follow(path: &Path, links: &mut BTreeMap<PathBuf, PathBuf>) {
    let mut rest: Vec<OsString> = path.iter().rev().map(OsStr::to_owned).collect();
    let mut reached = PathBuf::new();
    // The system follows at most 40 links.
    while let Some(part) = rest.pop().filter(|_| links.len() < LINKS_MAX) {
        if part == ".." {
            reached.pop();
            continue;
        }
        reached.push(part);
        let Ok(target) = reached.read_link() else { continue };
        links.insert(reached.clone(), target.clone());
        reached.pop();
        rest.extend(target.iter().rev().map(OsStr::to_owned));
    }
}

/// Bounds the links of a view; a system has a handful.
const LINKS_MAX: usize = 1000;

/// Returns the folders of the libraries that this process has loaded, including its C library.
fn own_libraries() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    let libraries = files.filter(|file| file.to_string_lossy().contains(".so"));
    libraries
        .filter_map(|file| file.parent().map(Path::to_owned))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

fn environment_paths(name: &str) -> Vec<PathBuf> {
    let value = std::env::var_os(name).unwrap_or_default();
    std::env::split_paths(&value).filter(|path| path.is_absolute()).collect()
}

/// Variables that name manifests of drivers and layers, or folders of them (Vulkan loader interface, "LoaderDriverInterface").
const MANIFESTS: &[&str] = &[
    "VK_DRIVER_FILES",
    "VK_ADD_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_LAYER_PATH",
    "VK_ADD_LAYER_PATH",
    "VK_IMPLICIT_LAYER_PATH",
    "VK_ADD_IMPLICIT_LAYER_PATH",
    // EGL's variables: without a display, NVIDIA's driver finds its devices through EGL.
    "__EGL_VENDOR_LIBRARY_FILENAMES",
    "__EGL_VENDOR_LIBRARY_DIRS",
];
/// The folders where drivers install their manifests.
const DRIVER_FOLDERS: &[&str] =
    &["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];

fn manifests() -> Vec<PathBuf> {
    let named = MANIFESTS.iter().flat_map(|name| environment_paths(name));
    let below = |variable, folder: &str| -> Vec<PathBuf> {
        environment_paths(variable).into_iter().map(|path| path.join(folder)).collect()
    };
    let data = below("XDG_DATA_DIRS", "vulkan").into_iter().chain(below("XDG_CONFIG_DIRS", "vulkan"));
    let all = named.chain(data).chain(DRIVER_FOLDERS.iter().map(PathBuf::from));
    // Opening a pipe, the loader would wait for a writer.
    let can_be_read = |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() || file.is_dir());
    all.filter(can_be_read).collect()
}

/// The most bytes that are read of a manifest; a manifest has some hundred.
const MANIFEST_BYTES: u64 = 1 << 20;

/// Returns the folders of the libraries that a manifest, or the manifests of a folder, name by path.
fn libraries_of(manifest: &Path) -> Vec<PathBuf> {
    if manifest.is_dir() {
        let entries = std::fs::read_dir(manifest).into_iter().flatten().flatten().map(|entry| entry.path());
        return entries.filter(|path| path.is_file()).flat_map(|path| libraries_of(&path)).collect();
    }
    let text = outside::read(manifest, MANIFEST_BYTES).unwrap_or_default();
    let Ok(manifest_of) = serde_json::from_slice::<serde_json::Value>(&text) else { return Vec::new() };
    let libraries =
        ["ICD", "layer"].iter().filter_map(|kind| manifest_of.get(kind)?.get("library_path")?.as_str());
    // The loader seeks a bare name in the folders of libraries; a relative path begins at the manifest.
    let paths = libraries.filter(|library| library.contains('/'));
    let beside = manifest.parent().unwrap_or(manifest);
    paths.filter_map(|library| beside.join(library).parent().map(Path::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_can_be_read() {
        for family in [DriverFamily::Any, DriverFamily::Software, DriverFamily::Mesa, DriverFamily::Nvidia] {
            Policy::of(family).unwrap();
        }
        Policy::of_device_process().unwrap();
    }

    #[test]
    fn patterns_have_one_star() {
        assert!(matches("VK_*", "VK_DRIVER_FILES") && matches("nvidia*", "nvidia"));
        assert!(matches("a*c", "abc") && !matches("ab*bc", "abc") && !matches("VK_*", "LD_PRELOAD"));
    }

    #[test]
    fn a_view_has_links_and_no_part_twice() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("real/deep")).unwrap();
        std::os::unix::fs::symlink("real", real.join("link")).unwrap();
        let text = |path: &str| real.join(path).to_string_lossy().into_owned();
        let policy = Policy {
            libraries: vec![text("link"), text("absent")],
            files: vec![text("real/deep")],
            ..Policy::default()
        };
        let view = policy.view();
        let ours: Vec<_> = view.shown.iter().filter(|part| part.path.starts_with(&real)).collect();
        assert_eq!(ours, [&Shown { path: real.join("real"), used: Use::Library }]);
        assert_eq!(view.links[&real.join("link")], Path::new("real"));
    }
}
