//! Shared libraries, found as the dynamic loader finds them (ld.so(8)), and the version of Mesa in a driver's file.

use crate::elf;
use crate::system::System;
use std::collections::BTreeSet;
use std::env::consts::ARCH;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The most files of the loader's configuration that are read; they may include each other.
const CONFIGURATION_FILES: usize = 1000;

/// A library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// The path of the file.
    pub path: PathBuf,
    /// The version of Mesa from which it was built, if its file names one.
    pub mesa: Option<String>,
}

/// The reason why a library cannot be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The library does not exist.
    Absent,
    /// The library exists only for another kind of processor.
    Foreign,
}

/// Finds a library for this program's kind of processor, by path or by name.
///
/// # Errors
///
/// The library does not exist for this kind of processor.
pub fn find(system: &System, name: &Path) -> Result<Library, Missing> {
    let mut missing = Missing::Absent;
    for path in candidates(system, name) {
        let Some(bytes) = system.bytes(&path) else { continue };
        match elf::is_own(&bytes) {
            true => return Ok(Library { path, mesa: mesa_version(&bytes) }),
            false => missing = Missing::Foreign,
        }
    }
    Err(missing)
}

/// Returns the path of a library, given by path or by name, without a look into its file.
#[must_use]
pub fn place(system: &System, name: &Path) -> Option<PathBuf> {
    candidates(system, name).find(|path| system.has(path))
}

/// Returns the paths at which a library may lie, in the order of the search.
fn candidates(system: &System, name: &Path) -> impl Iterator<Item = PathBuf> {
    let is_name = name.components().count() == 1;
    let searched = if is_name { folders(system) } else { vec![PathBuf::new()] };
    let in_cache = move || if is_name { cached(system) } else { Vec::new() };
    let in_cache =
        std::iter::once_with(in_cache).flatten().filter(move |path| path.file_name() == name.file_name());
    searched.into_iter().map(move |folder| folder.join(name)).chain(in_cache)
}

/// Returns the rest of the names of all libraries whose names begin with `start`.
#[must_use]
pub fn named(system: &System, start: &str) -> Vec<String> {
    let names = folders(system).into_iter().flat_map(|folder| system.names(folder));
    let ends: BTreeSet<String> =
        names.filter_map(|name| name.strip_prefix(start).map(str::to_owned)).collect();
    ends.into_iter().collect()
}

/// Returns the folders that are searched for a name.
pub(crate) fn folders(system: &System) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let variable = system.variable("LD_LIBRARY_PATH").unwrap_or_default();
    found.extend(variable.split(':').filter(|folder| folder.starts_with('/')).map(PathBuf::from));
    configured(system, Path::new("/etc/ld.so.conf"), &mut BTreeSet::new(), &mut found);
    let usual = [format!("/lib/{ARCH}-linux-gnu"), format!("/usr/lib/{ARCH}-linux-gnu")];
    found.extend(usual.into_iter().map(PathBuf::from));
    found.extend(["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"].map(PathBuf::from));
    found
}

/// Returns the libraries of the loader's cache, which may lie in other folders. Only the strings in the cache's file that are paths count.
pub(crate) fn cached(system: &System) -> Vec<PathBuf> {
    let cache = system.bytes("/etc/ld.so.cache").unwrap_or_default();
    let paths = cache.split(|byte| *byte == 0).filter(|text| text.starts_with(b"/"));
    paths.map(|path| OsStr::from_bytes(path).into()).collect()
}

/// Adds the folders that a file of the loader's configuration names.
fn configured(system: &System, file: &Path, read: &mut BTreeSet<PathBuf>, found: &mut Vec<PathBuf>) {
    if read.len() == CONFIGURATION_FILES || !read.insert(file.to_owned()) {
        return;
    }
    for line in system.read(file).unwrap_or_default().lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.strip_prefix("include ") {
            None if line.starts_with('/') => found.push(PathBuf::from(line)),
            None => {}
            Some(pattern) => {
                let pattern = file.with_file_name(pattern.trim());
                let (Some(folder), Some(name)) = (pattern.parent(), pattern.file_name()) else { continue };
                let name = name.to_string_lossy();
                for file in system.names(folder).into_iter().filter(|file| matches(&name, file)) {
                    configured(system, &folder.join(file), read, found);
                }
            }
        }
    }
}

/// Returns whether a name fits a pattern, in which `*` stands for anything, at the start, at the end, or once in the middle.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let inner = pattern.strip_prefix('*').and_then(|pattern| pattern.strip_suffix('*'));
    match (inner, pattern.split_once('*')) {
        (Some(inner), _) => name.contains(inner),
        (None, None) => pattern == name,
        (None, Some((start, end))) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    }
}

/// The most bytes of a version that is found.
const VERSION_BYTES: usize = 64;

/// Returns the version of Mesa in a driver's file: a whole string such as `25.0.7-2+deb13u1`, of two digits and two more numbers, and perhaps a
/// distribution's revision behind them.
fn mesa_version(file: &[u8]) -> Option<String> {
    let strings = file.split(|byte| *byte == 0).filter(|text| (6..VERSION_BYTES).contains(&text.len()));
    strings.filter_map(|text| std::str::from_utf8(text).ok()).find(|text| is_version(text)).map(str::to_owned)
}

fn is_version(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._+~:-".contains(c);
    let is_revision =
        |text: &str| text.is_empty() || text.starts_with(|c: char| !c.is_ascii_digit() && c != '.');
    let numbers: Vec<&str> = text.splitn(3, '.').collect();
    let [major, minor, rest] = numbers[..] else { return false };
    let digits =
        |text: &str, most| (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    major.len() == 2
        && digits(major, 2)
        && digits(minor, 2)
        && rest.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(allowed)
        && is_revision(rest.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// Returns the first two numbers of a version.
#[must_use]
pub fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::MACHINE;
    use crate::system::made::put;

    fn library(machine: u16, version: &str) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(18, 0);
        file.extend(machine.to_le_bytes());
        file.extend(format!("\0Mesa 9\01.2.3.4\0{version}\0more\0").bytes());
        file
    }

    #[test]
    fn a_library_is_found_as_the_loader_finds_it() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, content: &[u8]| put(root.path(), path, content);
        let system = System::below(root.path()).without_variables();
        let search =
            |system: &System| find(system, Path::new("libx.so")).map(|library| (library.path, library.mesa));
        assert_eq!(search(&system), Err(Missing::Absent));
        put("usr/lib/libx.so", &library(3, "25.0.1"));
        assert_eq!(search(&system), Err(Missing::Foreign));
        put("usr/lib64/libx.so", &library(MACHINE, "25.0.7-2+deb13u1"));
        let stock = ("/usr/lib64/libx.so".into(), Some("25.0.7-2+deb13u1".into()));
        assert_eq!(search(&system), Ok(stock.clone()));
        put("etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n");
        put("etc/ld.so.conf.d/00-first.conf", b"# ours\n/opt/first\n");
        assert_eq!(search(&system), Ok(stock));
        put("opt/first/libx.so", &library(MACHINE, "25.0.7-2+deb13u1+vuv2"));
        assert_eq!(search(&system), Ok(("/opt/first/libx.so".into(), Some("25.0.7-2+deb13u1+vuv2".into()))));
        put("etc/ld.so.cache", b"libcached.so\0/opt/cached/libcached.so\0");
        put("opt/cached/libcached.so", &library(MACHINE, "25.0.7"));
        assert_eq!(place(&system, Path::new("libcached.so")), Some("/opt/cached/libcached.so".into()));
        put("mine/libx.so", &library(MACHINE, "no version"));
        let system = system.with("LD_LIBRARY_PATH", "/mine");
        assert_eq!(search(&system), Ok(("/mine/libx.so".into(), None)));
    }

    #[test]
    fn versions_are_strings_of_their_own() {
        let ubuntu = ["23.2.1-1ubuntu3.1~22.04.4", "25.2.8-0ubuntu0.24.04.5"];
        let others = ["25.0.7-2+deb13u1", "26.1.6-1", "25.3.0", "26.2.0-rc1", "25.0.7-2+deb13u1+vuv1"];
        for text in ubuntu.into_iter().chain(others) {
            assert!(is_version(text), "{text}");
        }
        for text in ["Mesa 25.0.7", "1.3.305", "25.0", "25.0.7.1", "127.0.0.1", "25.0.x"] {
            assert!(!is_version(text), "{text}");
        }
        assert_eq!(version("25.0.7-2"), Some((25, 0)));
        assert_eq!(version("6.12.48+deb13-amd64"), Some((6, 12)));
        assert_eq!(version("x"), None);
    }

    #[test]
    fn patterns_have_stars() {
        assert!(
            matches("*", "any") && matches("*virtio*", "virtio_icd.json") && matches("lvp*", "lvp_icd.json")
        );
        assert!(matches("*.conf", "a.conf") && matches("a", "a"));
        assert!(!matches("*.conf", "a.conf.bak") && !matches("lvp*", "virtio_icd.json"));
    }
}
