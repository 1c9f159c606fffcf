//! Manifests of Vulkan drivers, found as Khronos' loader finds them ("LoaderDriverInterface" and "LoaderInterfaceArchitecture" in its documentation):
//! by variables of the environment, otherwise in the folders of the system.

use crate::libraries::{self, Library, Missing, matches};
use crate::needs::{self, Lacks};
use crate::system::System;
use std::path::{Path, PathBuf};

/// A driver that is installed or named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The path of the manifest.
    pub manifest: PathBuf,
    /// The name of its library in the manifest.
    pub name: String,
    /// The library, or the reason why the driver has none.
    pub library: Result<Library, NoLibrary>,
    /// The missing libraries that it needs.
    pub lacks: Lacks,
    /// The variable that names the manifest; none if it lies in a folder of the system.
    pub named_by: Option<&'static str>,
    /// The variables, with their values, that keep the loader from using the driver. Each variable alone is enough.
    pub hidden_by: Vec<String>,
}

/// The reason why a manifest leads to no library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLibrary {
    /// A variable names a manifest that does not exist.
    NoManifest,
    /// The manifest is malformed.
    Malformed,
    /// The system has no such library that this processor runs.
    Missing(Missing),
}

/// The variables that replace the folders; the first one that is set counts.
const INSTEAD: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];
/// The variable that adds to the folders, and has no effect if the folders are replaced.
const ADDED: &str = "VK_ADD_DRIVER_FILES";

/// A manifest that is installed or named.
struct Manifest {
    path: PathBuf,
    named_by: Option<&'static str>,
    hidden_by: Vec<String>,
}

/// Returns the variable that names the places of drivers, and its value.
#[must_use]
pub fn named_by(system: &System) -> Option<(&'static str, String)> {
    INSTEAD.iter().find_map(|name| Some((*name, system.variable(name)?.to_owned())))
}

/// Returns all drivers, including those that a variable hides.
#[must_use]
pub fn drivers(system: &System) -> Vec<Driver> {
    manifests(system).into_iter().map(|manifest| driver(system, manifest)).collect()
}

/// Returns the driver with a library that the fewest variables hide. Among several, a driver that a variable names comes first, because the loader then
/// looks at no other driver.
#[must_use]
pub fn least_hidden(drivers: &[Driver]) -> Option<&Driver> {
    let present = drivers.iter().filter(|driver| driver.library.is_ok());
    present.min_by_key(|driver| (driver.hidden_by.len(), driver.named_by.is_none()))
}

/// Returns the files of the drivers that the loader would load: the manifest of each, and its library if it has one.
#[must_use]
pub fn files(system: &System) -> Vec<(PathBuf, Option<PathBuf>)> {
    let shown = manifests(system).into_iter().filter(|manifest| manifest.hidden_by.is_empty());
    let library = |manifest: &Path| {
        libraries::place(system, &path_of(manifest, &library_named_by(&system.bytes(manifest)?)?))
    };
    shown.map(|Manifest { path, .. }| (path.clone(), library(&path))).collect()
}

/// Returns all manifests, with the variables that hide each.
fn manifests(system: &System) -> Vec<Manifest> {
    let instead = named_by(system);
    let added = system.variable(ADDED).map(|value| (ADDED, value.to_owned()));
    let named = instead.iter().chain(&added).flat_map(|(name, value)| {
        let paths = value.split(':').flat_map(|path| in_folder(system, path.into()));
        paths.map(|path| (path, Some(*name)))
    });
    let mut manifests: Vec<Manifest> = Vec::new();
    for (path, named_by) in installed(system).into_iter().map(|path| (path, None)).chain(named) {
        let other = instead.iter().filter(|(name, _)| named_by != Some(*name));
        let hidden_by = other.map(|(name, value)| format!("{name}={value}")).collect();
        let manifest = Manifest { path, named_by, hidden_by };
        match manifests.iter_mut().find(|known| known.path == manifest.path) {
            None => manifests.push(manifest),
            Some(known) if manifest.hidden_by.len() < known.hidden_by.len() => *known = manifest,
            Some(_) => {}
        }
    }
    for manifest in &mut manifests {
        manifest.hidden_by.extend(filtered(system, &manifest.path));
    }
    manifests
}

/// Returns the manifests in the folders of the system.
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

/// Returns the manifests in a folder; a path that is no folder is itself a manifest.
fn in_folder(system: &System, path: PathBuf) -> Vec<PathBuf> {
    if !system.metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
        return vec![path];
    }
    let names = system.names(&path).into_iter().filter(|name| name.ends_with(".json"));
    names.map(|name| path.join(name)).collect()
}

/// Returns the variables that filter a manifest out by its name.
fn filtered(system: &System, manifest: &Path) -> Vec<String> {
    let file = manifest.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let fits = |value: &str| value.split(',').any(|pattern| matches(&pattern.to_lowercase(), &file));
    let value = |name: &'static str| Some((name, system.variable(name)?));
    let selected = value("VK_LOADER_DRIVERS_SELECT");
    // A selected driver is used, even if it is also disabled.
    if selected.is_some_and(|(_, value)| fits(value)) {
        return Vec::new();
    }
    let disabled = value("VK_LOADER_DRIVERS_DISABLE").filter(|(_, value)| fits(value) || *value == "~all~");
    selected.into_iter().chain(disabled).map(|(name, value)| format!("{name}={value}")).collect()
}

impl Driver {
    /// Returns whether a variable names the driver in the place of all others.
    pub(crate) fn is_instead(&self) -> bool {
        self.named_by.is_some_and(|name| INSTEAD.contains(&name))
    }

    /// Returns, in words, the variables that hide the driver, and the remedy.
    pub(crate) fn hidden(&self) -> Option<(String, String)> {
        let verb = match self.hidden_by.len() {
            0 => return None,
            1 => "hides",
            _ => "hide",
        };
        let names: Vec<&str> =
            self.hidden_by.iter().map(|variable| variable.split('=').next().unwrap_or_default()).collect();
        Some((format!("{} {verb}", self.hidden_by.join(" and ")), format!("unset {}", names.join(" "))))
    }
}

fn driver(system: &System, Manifest { path: manifest, named_by, hidden_by }: Manifest) -> Driver {
    let (name, library) = match system.bytes(&manifest).map(|text| library_named_by(&text)) {
        None => (String::new(), Err(NoLibrary::NoManifest)),
        Some(None) => (String::new(), Err(NoLibrary::Malformed)),
        Some(Some(name)) => {
            let library = libraries::find(system, &path_of(&manifest, &name)).map_err(NoLibrary::Missing);
            (name, library)
        }
    };
    let lacks = library.as_ref().map(|library| needs::lacks(system, &library.path)).unwrap_or_default();
    Driver { manifest, name, library, lacks, named_by, hidden_by }
}

/// Returns the library that the text of a manifest names.
fn library_named_by(manifest: &[u8]) -> Option<String> {
    let parsed = serde_json::from_slice::<serde_json::Value>(manifest).ok()?;
    parsed.get("ICD")?.get("library_path")?.as_str().map(str::to_owned)
}

/// Returns the path, or only the name, of a library that a manifest names. A relative path begins at the manifest.
fn path_of(manifest: &Path, name: &str) -> PathBuf {
    if name.contains('/') { manifest.with_file_name(name) } else { PathBuf::from(name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::made::put;

    /// Returns a system with two manifests, one of them malformed, and without variables.
    fn system() -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| put(root.path(), &format!("usr/share/vulkan/icd.d/{name}"), text);
        put("lvp_icd.json", r#"{"ICD": {"library_path": "libvulkan_lvp.so"}}"#);
        put("virtio_icd.json", "{");
        let system = System::below(root.path()).without_variables();
        (root, system)
    }

    /// Returns the names of all manifests, each with the names of the variables that hide it.
    fn hidden(system: &System) -> Vec<(String, Vec<String>)> {
        let name = |driver: Driver| {
            let variables =
                driver.hidden_by.iter().map(|variable| variable.split('=').next().unwrap().to_owned());
            (driver.manifest.file_name().unwrap().to_string_lossy().into_owned(), variables.collect())
        };
        drivers(system).into_iter().map(name).collect()
    }

    fn both(lvp: &[&str], virtio: &[&str]) -> Vec<(String, Vec<String>)> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        vec![("lvp_icd.json".into(), owned(lvp)), ("virtio_icd.json".into(), owned(virtio))]
    }

    const FILES: &str = "VK_DRIVER_FILES";
    const OLD_FILES: &str = "VK_ICD_FILENAMES";
    const SELECT: &str = "VK_LOADER_DRIVERS_SELECT";
    const DISABLE: &str = "VK_LOADER_DRIVERS_DISABLE";
    const LVP: &str = "/usr/share/vulkan/icd.d/lvp_icd.json";

    #[test]
    fn without_variables_the_folders_of_the_system_count() {
        let (_root, plain) = system();
        assert_eq!(hidden(&plain), both(&[], &[]));
        let found = drivers(&plain);
        assert_eq!(found[0].library, Err(NoLibrary::Missing(Missing::Absent)));
        assert_eq!(found[1].library, Err(NoLibrary::Malformed));
        assert!(found.iter().all(|driver| driver.named_by.is_none()));
    }

    #[test]
    fn variables_name_drivers_in_the_place_of_all_others() {
        let (_root, plain) = system();
        let other = plain.clone().with(OLD_FILES, LVP).with(FILES, "/absent.json");
        let mut expected = both(&[FILES], &[FILES]);
        expected.push(("absent.json".into(), vec![]));
        assert_eq!(hidden(&other), expected);
        assert_eq!(drivers(&other)[2].named_by, Some(FILES));
        assert_eq!(drivers(&other)[2].library, Err(NoLibrary::NoManifest));
        let old = plain.with(OLD_FILES, LVP);
        assert_eq!(hidden(&old), both(&[], &[OLD_FILES]));
        assert_eq!(drivers(&old)[0].named_by, Some(OLD_FILES));
    }

    #[test]
    fn variables_add_drivers_unless_others_replace_all() {
        let (_root, plain) = system();
        let added = plain.with(ADDED, "/absent.json");
        let mut expected = both(&[], &[]);
        expected.push(("absent.json".into(), vec![]));
        assert_eq!(hidden(&added), expected);
        assert_eq!(drivers(&added)[2].named_by, Some(ADDED));
        for instead in INSTEAD {
            let mut expected = both(&[], &[instead]);
            expected.push(("absent.json".into(), vec![instead.to_owned()]));
            assert_eq!(hidden(&added.clone().with(instead, LVP)), expected);
        }
        // An installed driver is found whether or not a variable adds it.
        let twice = added.with(ADDED, LVP);
        assert_eq!((hidden(&twice), drivers(&twice)[0].named_by), (both(&[], &[]), None));
    }

    #[test]
    fn variables_select_and_disable_drivers() {
        let (root, plain) = system();
        let disabled = plain.clone().with(DISABLE, "*virtio*");
        assert_eq!(hidden(&disabled), both(&[], &[DISABLE]));
        assert_eq!(drivers(&disabled)[1].hidden_by, ["VK_LOADER_DRIVERS_DISABLE=*virtio*"]);
        // A selected driver is used although all drivers are disabled.
        let selected = plain.clone().with(SELECT, "virtio*").with(DISABLE, "~all~");
        assert_eq!(hidden(&selected), both(&[SELECT, DISABLE], &[]));
        // The filters hold for manifests that other variables name, too.
        assert_eq!(
            hidden(&plain.clone().with(FILES, LVP).with(DISABLE, "*")),
            both(&[DISABLE], &[FILES, DISABLE])
        );
        assert_eq!(hidden(&plain.with(FILES, LVP).with(SELECT, "virtio*")), both(&[SELECT], &[FILES]));
        let of_lvp = || (PathBuf::from(LVP), None);
        assert_eq!(files(&selected), [("/usr/share/vulkan/icd.d/virtio_icd.json".into(), None)]);
        assert_eq!(files(&disabled), [of_lvp()]);
        put(root.path(), "usr/lib/libvulkan_lvp.so", "not read");
        assert_eq!(files(&disabled), [(of_lvp().0, Some("/usr/lib/libvulkan_lvp.so".into()))]);
    }
}
