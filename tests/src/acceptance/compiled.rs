//! The number of times that each package was compiled, by the folders in which cargo keeps the state of each compilation.
//!
//! A package that commands build with other features, flags or profiles is compiled again for each: that is most of the time of a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The number of compilations of each package's library: for tests, lints and documentation, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Compiled(BTreeMap<String, usize>);

impl Compiled {
    /// Counts what lies in a target folder. A folder that cannot be read counts for nothing.
    pub(super) fn in_folder(target: &Path) -> Self {
        let mut compiled = Self::default();
        // Profiles are folders, and targets named on the command line are folders of profiles.
        for profile in
            folders(target).iter().flat_map(|folder| folders(folder).into_iter().chain([folder.clone()]))
        {
            for unit in folders(&profile.join(".fingerprint")) {
                let name = unit.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let Some((package, _)) = name.rsplit_once('-') else { continue };
                let files =
                    fs::read_dir(&unit).into_iter().flatten().flatten().map(|entry| entry.file_name());
                let names: Vec<_> = files.map(|name| name.to_string_lossy().into_owned()).collect();
                let is_library = |name: &String| {
                    name.ends_with(".json")
                        && ["lib-", "test-lib-", "doc-lib-"].iter().any(|kind| name.starts_with(kind))
                };
                if names.iter().any(is_library) {
                    *compiled.0.entry(package.to_owned()).or_default() += 1;
                }
            }
        }
        compiled
    }

    /// The most compilations of a package among those that `wanted` accepts, and the packages that have so many.
    pub(super) fn most(&self, wanted: impl Fn(&str) -> bool) -> (usize, Vec<&str>) {
        let counts = || self.0.iter().filter(|(name, _)| wanted(name));
        let most = counts().map(|(_, count)| *count).max().unwrap_or(0);
        (
            most,
            counts()
                .filter(|(_, count)| **count == most && most > 0)
                .map(|(name, _)| name.as_str())
                .collect(),
        )
    }

    /// Returns the counts by package.
    pub(super) fn counts(&self) -> &BTreeMap<String, usize> {
        &self.0
    }
}

fn folders(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_count_in_each_profile_and_programs_do_not() {
        let target = tempfile::tempdir().unwrap();
        for (unit, file) in [
            ("debug/.fingerprint/serde-01", "lib-serde.json"),
            ("debug/.fingerprint/serde-02", "lib-serde.json"),
            ("debug/.fingerprint/serde-03", "build-script-build-script-build.json"),
            ("release/.fingerprint/serde-04", "lib-serde.json"),
            ("aarch64-unknown-linux-gnu/release/.fingerprint/serde-05", "lib-serde.json"),
            ("debug/.fingerprint/daemon-06", "test-lib-daemon.json"),
            ("debug/.fingerprint/daemon-07", "bin-daemon.json"),
        ] {
            let folder = target.path().join(unit);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file), "{}").unwrap();
        }
        let compiled = Compiled::in_folder(target.path());
        assert_eq!(compiled.most(|_| true), (4, vec!["serde"]));
        assert_eq!(compiled.most(|name| name == "daemon"), (1, vec!["daemon"]));
        assert_eq!(compiled.most(|name| name == "absent"), (0, vec![]));
    }
}
