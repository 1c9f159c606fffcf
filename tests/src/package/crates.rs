//! The crates that the daemon is made of, as cargo resolves them for one target: their versions, sources and licences.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::names::Architecture;
use crate::program::{LIMIT, succeed};

/// The daemon's crates, its own among them, in the order of their names.
#[derive(Clone, Debug)]
pub struct Crates {
    /// All of them.
    pub all: Vec<Crate>,
    /// The version of the daemon.
    pub version: String,
    /// The root of the repository.
    pub repository: PathBuf,
    pub(super) target_folder: PathBuf,
    pub(super) cargo_home: PathBuf,
}

/// One crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Crate {
    /// The name in the registry.
    pub name: String,
    /// The version.
    pub version: String,
    /// The licence, as an SPDX expression; empty if it names none.
    pub licence: String,
    /// The SHA-256 of the crate's archive in the registry; none for a crate of this repository.
    pub checksum: Option<String>,
    /// The numbers of the crates that it uses, in the list of all.
    pub uses: Vec<usize>,
    folder: PathBuf,
}

impl Crates {
    /// Asks cargo for the crates in the daemon: without the tools of its build and the crates of its tests.
    ///
    /// # Errors
    /// cargo fails, or its output is not as expected.
    pub fn of_the_daemon(architecture: Architecture) -> Result<Self> {
        let triple = architecture.triple();
        let cargo = |arguments: &[&str]| {
            let mut cargo = crate::program::cargo::cargo();
            cargo.args(arguments).arg("--locked");
            succeed(cargo, LIMIT)
        };
        let metadata: Value =
            serde_json::from_str(&cargo(&["metadata", "--format-version=1", "--filter-platform", triple])?)?;
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let repository = PathBuf::from(text(&metadata, "workspace_root"));
        let checksums = checksums(&repository)?;
        let tree = cargo(&[
            "tree",
            "--package=daemon",
            "--edges=normal,no-proc-macro",
            "--target",
            triple,
            "--prefix=depth",
            "--no-dedupe",
            "--format= {p}",
        ])?;
        let lines: Vec<(usize, (&str, &str))> = tree.lines().filter_map(line_of_tree).collect();
        let numbers: BTreeMap<(&str, &str), usize> = {
            let mut found: Vec<_> = lines.iter().map(|(_, found)| *found).collect();
            found.sort_unstable();
            found.dedup();
            found.into_iter().zip(0..).collect()
        };
        let mut all = numbers
            .keys()
            .map(|&(name, version)| {
                let packages = metadata["packages"].as_array().into_iter().flatten();
                let package = packages.into_iter().find(|it| it["name"] == name && it["version"] == version);
                let package = package.with_context(|| format!("cargo metadata lacks {name} {version}"))?;
                let manifest = PathBuf::from(text(package, "manifest_path"));
                Ok(Crate {
                    name: name.to_owned(),
                    version: version.to_owned(),
                    licence: text(package, "license").replace('/', " OR "),
                    checksum: checksums.get(&(name.to_owned(), version.to_owned())).cloned(),
                    uses: Vec::new(),
                    folder: manifest.parent().context("a manifest lies in a folder")?.to_owned(),
                })
            })
            .collect::<Result<Vec<Crate>>>()?;
        // A line's parent is the last line above it with less indentation.
        let mut path: Vec<usize> = Vec::new();
        for (depth, found) in lines {
            path.truncate(depth);
            let number = numbers[&found];
            if let Some(&user) = path.last()
                && !all[user].uses.contains(&number)
            {
                all[user].uses.push(number);
            }
            path.push(number);
        }
        all.iter_mut().for_each(|it| it.uses.sort_unstable());
        let daemon = all.iter().find(|it| it.name == "daemon").context("cargo tree lacks the daemon")?;
        Ok(Self {
            version: daemon.version.clone(),
            repository,
            target_folder: text(&metadata, "target_directory").into(),
            cargo_home: cargo_home()?,
            all,
        })
    }

    /// Returns the crates that are not of this repository.
    pub fn foreign(&self) -> impl Iterator<Item = &Crate> {
        self.all.iter().filter(|it| it.checksum.is_some())
    }

    /// Returns the licences of foreign crates with their texts, each text once.
    pub(super) fn licences(&self) -> Result<String> {
        let mut text = String::from(
            "The program vhost-user-vulkan contains these libraries. Their licences, as their authors ship them, follow the list.\n\n",
        );
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for it in self.foreign() {
            let name = format!("{} {}", it.name, it.version);
            writeln!(text, "{name}: {}", it.licence)?;
            for licence in it.licence_files()? {
                texts.entry(licence).or_default().push(name.clone());
            }
        }
        let mut texts: Vec<_> = texts.into_iter().map(|(licence, of)| (of, licence)).collect();
        texts.sort();
        for (of, licence) in texts {
            writeln!(text, "\n{}\nLicence of: {}\n\n{licence}", "-".repeat(78), of.join(", "))?;
        }
        Ok(text)
    }
}

impl Crate {
    /// Returns the texts of its licence files.
    ///
    /// # Errors
    /// Its folder cannot be read.
    pub fn licence_files(&self) -> Result<Vec<String>> {
        let begins = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
        let folder = || format!("reading {}", self.folder.display());
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).with_context(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            if path.is_file() && begins.iter().any(|beginning| name.starts_with(beginning)) {
                files.push(path);
            }
        }
        files.sort();
        let read =
            |file: &PathBuf| Ok(String::from_utf8_lossy(&fs::read(file)?).trim_end().replace('\r', ""));
        files.iter().map(read).collect()
    }
}

/// Reads a line such as `2 anyhow v1.0.100` or `1 protocol v0.1.0 (/folder)`.
fn line_of_tree(line: &str) -> Option<(usize, (&str, &str))> {
    let mut words = line.split(' ');
    let depth = words.next()?.parse().ok()?;
    Some((depth, (words.next()?, words.next()?.strip_prefix('v')?)))
}

/// The checksums of the lock file, by name and version.
fn checksums(repository: &Path) -> Result<BTreeMap<(String, String), String>> {
    let lock = fs::read_to_string(repository.join("Cargo.lock")).context("reading Cargo.lock")?;
    let lock: toml::Table = lock.parse().context("Cargo.lock")?;
    let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let checksum = |package: &toml::Value| {
        let text = |key| Some(package.get(key)?.as_str()?.to_owned());
        Some(((text("name")?, text("version")?), text("checksum")?))
    };
    Ok(packages.filter_map(checksum).collect())
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("set HOME or CARGO_HOME: cargo keeps crates there")?;
    Ok(Path::new(&home).join(".cargo"))
}

#[cfg(test)]
mod tests {
    use super::{Architecture, Crates, line_of_tree};

    #[test]
    fn lines_of_the_tree_name_depth_crate_and_version() {
        assert_eq!(line_of_tree("2 anyhow v1.0.100"), Some((2, ("anyhow", "1.0.100"))));
        assert_eq!(line_of_tree("0 daemon v0.1.0 (/a b)"), Some((0, ("daemon", "0.1.0"))));
        assert_eq!(line_of_tree(""), None);
    }

    #[test]
    fn the_daemons_crates_are_those_that_run() {
        let crates = Crates::of_the_daemon(Architecture::Amd64).unwrap();
        let number = |name: &str| crates.all.iter().position(|it| it.name == name);
        let (daemon, vulkan, ash) =
            (number("daemon").unwrap(), number("vulkan").unwrap(), number("ash").unwrap());
        assert!(crates.all[daemon].uses.contains(&vulkan) && crates.all[vulkan].uses.contains(&ash));
        // A tool of the build, and one of the tests.
        assert_eq!((number("clap_derive"), number("tempfile")), (None, None));
        assert!(crates.foreign().all(|it| !it.licence.is_empty()));
    }
}
