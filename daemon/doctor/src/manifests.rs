//! Manifests of Vulkan drivers, found as Khronos' loader finds them ("LoaderDriverInterface" and "LoaderInterfaceArchitecture" in its
//! documentation): by variables of the environment, or else in the folders of the system.

use crate::libraries::{self, Library, Missing, matches};
use crate::system::System;
use std::path::{Path, PathBuf};

/// A driver that is installed or named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The path of the manifest.
    pub manifest: PathBuf,
    /// The name of its library, as the manifest has it.
    pub name: String,
    /// The library, or why there is none.
    pub library: Result<Library, NoLibrary>,
    /// The variable that keeps the loader from using it.
    pub hidden_by: Option<String>,
}

/// The reason why a manifest leads to no library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLibrary {
    /// There is no manifest where a variable says that one is.
    NoManifest,
    /// The manifest is malformed.
    Malformed,
    /// There is no library that this processor runs.
    Missing(Missing),
}

/// The variables that replace the folders, the one first that counts first.
const INSTEAD: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// Returns the variable that says where drivers are, and its value.
#[must_use]
pub fn named_by(system: &System) -> Option<(&'static str, String)> {
    INSTEAD.iter().find_map(|name| Some((*name, system.variable(name)?.to_owned())))
}

/// Returns all drivers, with those that a variable hides.
#[must_use]
pub fn drivers(system: &System) -> Vec<Driver> {
    let look = |(manifest, hidden_by)| driver(system, manifest, hidden_by);
    manifests(system).into_iter().map(look).collect()
}

/// Returns the files of the drivers that the loader would load: of each its manifest, and its library if there is one.
#[must_use]
pub fn files(system: &System) -> Vec<(PathBuf, Option<PathBuf>)> {
    let shown = manifests(system).into_iter().filter(|(_, hidden_by)| hidden_by.is_none());
    let library = |manifest: &Path| {
        libraries::place(system, &path_of(manifest, &library_named_by(&system.bytes(manifest)?)?))
    };
    shown.map(|(manifest, _)| (manifest.clone(), library(&manifest))).collect()
}

/// All manifests, with the variable that hides each.
fn manifests(system: &System) -> Vec<(PathBuf, Option<String>)> {
    let mut manifests: Vec<(PathBuf, Option<String>)> = installed(system)
        .into_iter()
        .map(|manifest| (manifest, named_by(system).map(|(name, value)| format!("{name}={value}"))))
        .collect();
    let named = named_by(system).map(|(_, value)| value).into_iter();
    for value in named.chain(system.variable("VK_ADD_DRIVER_FILES").map(str::to_owned)) {
        for manifest in value.split(':').map(PathBuf::from).flat_map(|path| in_folder(system, path)) {
            match manifests.iter_mut().find(|(known, _)| *known == manifest) {
                Some((_, hidden_by)) => *hidden_by = None,
                None => manifests.push((manifest, None)),
            }
        }
    }
    let look = |(manifest, hidden_by): (PathBuf, Option<String>)| {
        let hidden_by = hidden_by.or_else(|| filtered(system, &manifest));
        (manifest, hidden_by)
    };
    manifests.into_iter().map(look).collect()
}

/// The manifests in the folders of the system.
fn installed(system: &System) -> Vec<PathBuf> {
    let list = |name, usual: &str| -> Vec<PathBuf> {
        system.variable(name).unwrap_or(usual).split(':').map(PathBuf::from).collect()
    };
    let home = system.variable("HOME").map(Path::new);
    let own = |name, below: &str| {
        system.variable(name).map(PathBuf::from).or_else(|| home.map(|home| home.join(below)))
    };
    let mut folders: Vec<PathBuf> = own("XDG_CONFIG_HOME", ".config").into_iter().collect();
    folders.extend(list("XDG_CONFIG_DIRS", "/etc/xdg"));
    folders.push("/etc".into());
    folders.extend(own("XDG_DATA_HOME", ".local/share"));
    folders.extend(list("XDG_DATA_DIRS", "/usr/local/share:/usr/share"));
    folders
        .into_iter()
        .map(|folder| folder.join("vulkan/icd.d"))
        .filter(|folder| system.has(folder))
        .flat_map(|folder| in_folder(system, folder))
        .collect()
}

/// The manifests of a folder; the path of anything else is one itself.
fn in_folder(system: &System, path: PathBuf) -> Vec<PathBuf> {
    if !system.metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
        return vec![path];
    }
    let names = system.names(&path).into_iter().filter(|name| name.ends_with(".json"));
    names.map(|name| path.join(name)).collect()
}

/// Returns the variable that filters a manifest out by its name, if one does.
fn filtered(system: &System, manifest: &Path) -> Option<String> {
    let file = manifest.file_name()?.to_string_lossy().to_lowercase();
    let fits = |value: &str| value.split(',').any(|pattern| matches(&pattern.to_lowercase(), &file));
    let shown = |name: &str, value: &str| format!("{name}={value}");
    let (select, disable) = ("VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE");
    // What is selected is used, even if it is disabled as well.
    if let Some(value) = system.variable(select) {
        return (!fits(value)).then(|| shown(select, value));
    }
    let value = system.variable(disable)?;
    (fits(value) || value == "~all~").then(|| shown(disable, value))
}

fn driver(system: &System, manifest: PathBuf, hidden_by: Option<String>) -> Driver {
    let Some(text) = system.bytes(&manifest) else {
        return Driver { manifest, name: String::new(), library: Err(NoLibrary::NoManifest), hidden_by };
    };
    let Some(name) = library_named_by(&text) else {
        return Driver { manifest, name: String::new(), library: Err(NoLibrary::Malformed), hidden_by };
    };
    let library = libraries::find(system, &path_of(&manifest, &name)).map_err(NoLibrary::Missing);
    Driver { manifest, name, library, hidden_by }
}

/// Returns the library that the text of a manifest names.
fn library_named_by(manifest: &[u8]) -> Option<String> {
    let parsed = serde_json::from_slice::<serde_json::Value>(manifest).ok()?;
    parsed.get("ICD")?.get("library_path")?.as_str().map(str::to_owned)
}

/// Returns the path, or the mere name, of a library that a manifest names. A relative path begins at the manifest.
fn path_of(manifest: &Path, name: &str) -> PathBuf {
    if name.contains('/') { manifest.with_file_name(name) } else { PathBuf::from(name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn hidden(system: &System) -> Vec<(String, Option<String>)> {
        let name = |driver: Driver| {
            (driver.manifest.file_name().unwrap().to_string_lossy().into_owned(), driver.hidden_by)
        };
        drivers(system).into_iter().map(name).collect()
    }

    #[test]
    fn variables_name_select_and_disable_drivers() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/share/vulkan/icd.d");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("lvp_icd.json"), r#"{"ICD": {"library_path": "libvulkan_lvp.so"}}"#).unwrap();
        fs::write(folder.join("virtio_icd.json"), "{").unwrap();
        let plain = ["HOME", "XDG_DATA_DIRS", "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"]
            .iter()
            .fold(System::below(root.path()), |system, name| system.with(name, ""));
        let named = |name: &str| name.to_owned();
        let both = |lvp: Option<&str>, virtio: Option<&str>| {
            vec![(named("lvp_icd.json"), lvp.map(named)), (named("virtio_icd.json"), virtio.map(named))]
        };
        assert_eq!(hidden(&plain), both(None, None));
        assert_eq!(drivers(&plain)[0].library, Err(NoLibrary::Missing(Missing::Absent)));
        assert_eq!(drivers(&plain)[1].library, Err(NoLibrary::Malformed));
        let disable = "VK_LOADER_DRIVERS_DISABLE";
        let disabled = plain.clone().with(disable, "*virtio*");
        assert_eq!(hidden(&disabled), both(None, Some("VK_LOADER_DRIVERS_DISABLE=*virtio*")));
        let selected = plain.clone().with("VK_LOADER_DRIVERS_SELECT", "virtio*").with(disable, "~all~");
        assert_eq!(hidden(&selected), both(Some("VK_LOADER_DRIVERS_SELECT=virtio*"), None));
        let file = "/usr/share/vulkan/icd.d/lvp_icd.json";
        let other = plain.clone().with("VK_ICD_FILENAMES", file).with("VK_DRIVER_FILES", "/absent.json");
        let reason = Some("VK_DRIVER_FILES=/absent.json");
        let mut expected = both(reason, reason);
        expected.push(("absent.json".into(), None));
        assert_eq!(hidden(&other), expected);
        let added = other.with("VK_ADD_DRIVER_FILES", file);
        assert_eq!(hidden(&added)[0].1, None);
        let of_lvp = || (PathBuf::from("/usr/share/vulkan/icd.d/lvp_icd.json"), None);
        assert_eq!(files(&selected), [("/usr/share/vulkan/icd.d/virtio_icd.json".into(), None)]);
        assert_eq!(files(&disabled), [of_lvp()]);
        let library = root.path().join("usr/lib/libvulkan_lvp.so");
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        fs::write(library, "not read").unwrap();
        assert_eq!(files(&disabled), [(of_lvp().0, Some("/usr/lib/libvulkan_lvp.so".into()))]);
    }
}
