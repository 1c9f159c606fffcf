//! The number of times that a run compiled each package's library, by the folders in which cargo keeps the state of each compilation.
//!
//! Cargo compiles a library again for each profile, set of features, set of flags and purpose (a program, a lint, a page): these compilations take
//! most of the time of a run. Files that earlier runs have left in the target folder do not count.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::daemon_process::start_time;

/// The compilations of a package that a gate should not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Goals {
    /// The most for a package of this repository: for tests and lints, for the package, and for `cargo instructions`.
    pub ours: usize,
    /// The most for a package of others: for tests, and for the package.
    pub others: usize,
}

/// The goals that hold; tests/README.md has the reasons.
pub(super) const GOALS: Goals = Goals { ours: 3, others: 2 };

/// The number of compilations of each package's library. The compilation of a library with its unit tests is not counted, because it makes a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Compiled(pub(super) BTreeMap<String, usize>);

impl Compiled {
    /// Counts the compilations below a target folder since this time. A folder that cannot be read does not count.
    pub(super) fn since(began: SystemTime, target: &Path) -> Self {
        // Two versions of a package are two libraries, which cargo distinguishes by the places of their sources.
        let mut libraries: BTreeMap<(String, String), usize> = BTreeMap::new();
        // Profiles are folders, and targets named on the command line are folders of profiles.
        for profile in
            folders(target).iter().flat_map(|folder| folders(folder).into_iter().chain([folder.clone()]))
        {
            for unit in folders(&profile.join(".fingerprint")) {
                if let Some(library) = library(&unit).filter(|_| is_since(began, &unit)) {
                    *libraries.entry(library).or_default() += 1;
                }
            }
        }
        let mut compiled = Self::default();
        for ((package, _), count) in libraries {
            let most = compiled.0.entry(package).or_default();
            *most = count.max(*most);
        }
        compiled
    }

    /// The most compilations of a package among those that `wanted` accepts, and the packages that have this number.
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

    /// Returns the counts by package; of a package with several versions, that of the version with the most.
    pub(super) fn counts(&self) -> &BTreeMap<String, usize> {
        &self.0
    }
}

/// The time at which this process was started, which the kernel counts in clock ticks since it has booted. Cargo compiles `acceptance` and then executes
/// it in its own process: a stamp that `acceptance` took at its start would come after that compilation, which belongs to the run.
pub(super) fn began() -> SystemTime {
    began_before(SystemTime::now())
}

/// Does the same as [`began`], with `now` as the current time: the clock may be set back meanwhile.
fn began_before(now: SystemTime) -> SystemTime {
    let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let since_boot =
        Duration::new(since_boot.tv_sec.unsigned_abs(), since_boot.tv_nsec.unsigned_abs() as u32);
    let ticks = start_time(std::process::id()) as f64 / rustix::param::clock_ticks_per_second() as f64;
    let started = Duration::try_from_secs_f64(ticks).unwrap_or_default();
    now - since_boot.saturating_sub(started)
}

/// The package and the place of the sources of a compilation, if that is one of a library.
fn library(unit: &Path) -> Option<(String, String)> {
    let name = unit.file_name()?.to_string_lossy().into_owned();
    let (package, _) = name.rsplit_once('-')?;
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".json") && ["lib-", "doc-lib-"].iter().any(|kind| name.starts_with(kind))
    };
    let file = entries(unit).find(is_library)?;
    let state: Value = serde_json::from_slice(&fs::read(file).ok()?).unwrap_or_default();
    Some((package.to_owned(), state["path"].to_string()))
}

/// Returns whether cargo began the compilation at this time or later.
fn is_since(began: SystemTime, unit: &Path) -> bool {
    let invoked = fs::metadata(unit.join("invoked.timestamp")).and_then(|file| file.modified());
    invoked.is_ok_and(|invoked| invoked >= began)
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    entries(folder).filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a compilation, as cargo leaves it.
    fn compile(target: &Path, unit: &str, file: &str, source: u64) {
        let folder = target.join(unit);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(file), format!(r#"{{"features":"[]","path":{source}}}"#)).unwrap();
        fs::write(folder.join("invoked.timestamp"), "").unwrap();
    }

    #[test]
    fn libraries_count_in_each_profile_and_programs_and_tests_do_not() {
        let target = tempfile::tempdir().unwrap();
        for (unit, file) in [
            ("debug/.fingerprint/serde-01", "lib-serde.json"),
            ("debug/.fingerprint/serde-02", "lib-serde.json"),
            ("debug/.fingerprint/serde-03", "build-script-build-script-build.json"),
            ("release/.fingerprint/serde-04", "lib-serde.json"),
            ("aarch64-unknown-linux-gnu/release/.fingerprint/serde-05", "lib-serde.json"),
            ("debug/.fingerprint/daemon-06", "lib-daemon.json"),
            ("debug/.fingerprint/daemon-07", "doc-lib-daemon.json"),
            ("debug/.fingerprint/daemon-08", "test-lib-daemon.json"),
            ("debug/.fingerprint/daemon-09", "bin-daemon.json"),
        ] {
            compile(target.path(), unit, file, 1);
        }
        let compiled = Compiled::since(SystemTime::UNIX_EPOCH, target.path());
        assert_eq!(compiled.most(|_| true), (4, vec!["serde"]));
        assert_eq!(compiled.most(|name| name == "daemon"), (2, vec!["daemon"]));
        assert_eq!(compiled.most(|name| name == "absent"), (0, vec![]));
    }

    #[test]
    fn two_versions_of_a_package_are_two_libraries() {
        let target = tempfile::tempdir().unwrap();
        for (unit, source) in [("syn-01", 2), ("syn-02", 3), ("syn-03", 3)] {
            compile(target.path(), &format!("debug/.fingerprint/{unit}"), "lib-syn.json", source);
        }
        let compiled = Compiled::since(SystemTime::UNIX_EPOCH, target.path());
        assert_eq!(compiled.most(|_| true), (2, vec!["syn"]));
    }

    #[test]
    fn what_was_compiled_before_the_run_does_not_count() {
        let target = tempfile::tempdir().unwrap();
        compile(target.path(), "debug/.fingerprint/serde-01", "lib-serde.json", 1);
        compile(target.path(), "debug/.fingerprint/serde-02", "lib-serde.json", 1);
        let old = target.path().join("debug/.fingerprint/serde-01/invoked.timestamp");
        let old = fs::File::options().write(true).open(old).unwrap();
        old.set_modified(SystemTime::now() - Duration::from_secs(86_400 * 365)).unwrap();
        assert_eq!(Compiled::since(began(), target.path()).most(|_| true), (1, vec!["serde"]));
    }

    #[test]
    fn a_run_began_before_now() {
        let now = SystemTime::now();
        let ago = now.duration_since(began_before(now)).unwrap();
        // Tests run for hours at most.
        assert!(ago < Duration::from_secs(86_400), "{ago:?}");
    }
}
