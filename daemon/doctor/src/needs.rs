//! The missing libraries that a driver's library needs, sought as the dynamic loader does (ld.so(8)). This module loads no library, because
//! the code of a library runs as soon as it is loaded.

use crate::elf::Needs;
use crate::libraries::{cached, folders};
use crate::system::System;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The missing libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// Libraries without which the driver cannot be loaded, in the order of the search.
    pub needed: Vec<String>,
    /// Libraries that the driver is known to open when it runs; its file does not name them.
    pub opened: Vec<String>,
}

/// The most libraries that are looked at: a driver with LLVM and all of X needs some sixty.
const LIBRARIES_MAX: usize = 1000;

/// Libraries that drivers open when they run: the beginning of a driver's name, and the library.
const OPENED: [(&str, &str); 1] = [("libGLX_nvidia.so.", "libEGL.so.1")];

/// Returns the missing libraries among those that the library at `path` needs, directly or through others.
pub(crate) fn lacks(system: &System, path: &Path) -> Lacks {
    let mut search = Search::of(system);
    search.follow(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let opened = OPENED.iter().filter(|(driver, _)| name.starts_with(driver)).map(|(_, library)| *library);
    let opened = opened.filter(|name| !search.missing.iter().any(|missing| missing == name));
    let opened = opened.filter(|name| search.find(name, &[]).is_none()).map(str::to_owned).collect();
    Lacks { opened, needed: search.missing }
}

/// The search for libraries on a system.
struct Search<'s> {
    system: &'s System,
    folders: Vec<PathBuf>,
    cached: Vec<PathBuf>,
    seen: BTreeSet<String>,
    missing: Vec<String>,
}

impl<'s> Search<'s> {
    fn of(system: &'s System) -> Self {
        let (folders, cached) = (folders(system), cached(system));
        Self { system, folders, cached, seen: BTreeSet::new(), missing: Vec::new() }
    }

    /// Looks for all libraries that a library needs. The search keeps the folders that the library passes on to them.
    fn follow(&mut self, path: &Path) {
        let mut todo = vec![(path.to_owned(), Vec::new())];
        while let Some((path, passed_on)) = todo.pop() {
            let Some(needs) = self.needs(&path) else { continue };
            let here = |folders: &[String]| {
                folders.iter().map(|folder| at_origin(folder, &path)).collect::<Vec<_>>()
            };
            let inherited = [here(&needs.inherited_folders), passed_on].concat();
            let own = if needs.own_folders.is_empty() { inherited.clone() } else { here(&needs.own_folders) };
            // If a folder depends on a value that only the dynamic loader knows, such as $LIB, no library is reported missing.
            let is_known = !own.iter().any(|folder| folder.to_string_lossy().contains('$'));
            for name in needs.libraries {
                if is_loader(&name) || self.seen.len() == LIBRARIES_MAX || !self.seen.insert(name.clone()) {
                    continue;
                }
                match self.find(&name, &own) {
                    Some(found) => todo.push((found, inherited.clone())),
                    None if is_known => self.missing.push(name),
                    None => {}
                }
            }
        }
    }

    fn find(&self, name: &str, own: &[PathBuf]) -> Option<PathBuf> {
        let fits = |path: &PathBuf| self.needs(path).is_some();
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(fits);
        }
        let mut searched = own.iter().chain(&self.folders).map(|folder| folder.join(name));
        let mut cached = self.cached.iter().filter(|path| path.file_name().is_some_and(|file| file == name));
        searched.find(fits).or_else(|| cached.find(|path| fits(path)).cloned())
    }

    fn needs(&self, path: &Path) -> Option<Needs> {
        Needs::of(&self.system.open(path)?)
    }
}

/// Returns whether this is the dynamic loader, which is present wherever a library is loaded.
fn is_loader(name: &str) -> bool {
    ["ld-linux", "ld64", "ld.so"].iter().any(|loader| name.starts_with(loader))
}

/// Returns a folder whose path may begin at the library's folder.
fn at_origin(folder: &str, library: &Path) -> PathBuf {
    let origin = library.parent().unwrap_or(Path::new("/")).to_string_lossy();
    folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::made::{library, needing};
    use crate::system::made::put;

    const RPATH: u64 = 15;
    const RUNPATH: u64 = 29;
    const NEEDED: u64 = 1;

    /// Returns a system with these libraries.
    fn system(files: &[(&str, Vec<u8>)]) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            put(root.path(), path, content);
        }
        let system = System::below(root.path()).without_variables();
        (root, system)
    }

    fn lacking(files: &[(&str, Vec<u8>)]) -> Vec<String> {
        let (_root, system) = system(files);
        lacks(&system, Path::new("/usr/lib/libdriver.so")).needed
    }

    #[test]
    fn what_a_driver_needs_is_looked_for_to_the_last() {
        let driver = ("usr/lib/libdriver.so", needing(&["liba.so.1", "ld-linux-x86-64.so.2"]));
        let a = ("usr/lib64/liba.so.1", needing(&["libb.so.2", "libdriver.so", "libc.so.6"]));
        assert_eq!(lacking(std::slice::from_ref(&driver)), ["liba.so.1"]);
        assert_eq!(lacking(&[driver.clone(), a.clone()]), ["libb.so.2", "libc.so.6"]);
        let rest = [("usr/lib/libb.so.2", needing(&[])), ("lib/libc.so.6", needing(&[]))];
        assert_eq!(lacking(&[&[driver.clone(), a.clone()], &rest[..]].concat()), [""; 0]);
        // A library for another kind of processor counts as missing.
        let mut foreign = needing(&[]);
        foreign[4] = 1;
        assert_eq!(lacking(&[driver, ("usr/lib/liba.so.1", foreign)]), ["liba.so.1"]);
        assert_eq!(lacking(&[("usr/lib/libdriver.so", b"no library".to_vec())]), [""; 0]);
    }

    #[test]
    fn folders_that_libraries_name_and_the_cache_count() {
        let a = || ("opt/x/liba.so.1", needing(&["libb.so.2"]));
        let b = || ("opt/x/libb.so.2", needing(&[]));
        let driver =
            |kind, folder| ("usr/lib/libdriver.so", library(&[(NEEDED, "liba.so.1"), (kind, folder)]));
        // Only the older kind of folder is passed on.
        assert_eq!(lacking(&[driver(RUNPATH, "/opt/x"), a(), b()]), ["libb.so.2"]);
        assert_eq!(lacking(&[driver(RPATH, "/opt/x"), a(), b()]), [""; 0]);
        assert_eq!(lacking(&[driver(RPATH, "$ORIGIN/../../opt/x"), a(), b()]), [""; 0]);
        assert_eq!(lacking(&[driver(RUNPATH, "/opt/$LIB"), a(), b()]), [""; 0]);
        let cache = (
            "etc/ld.so.cache",
            b"glibc-ld.so.cache1.1\0libb.so.2\0/opt/x/libb.so.2\0/opt/x/liba.so.1\0".to_vec(),
        );
        assert_eq!(lacking(&[driver(RUNPATH, "/none"), a(), b(), cache]), [""; 0]);
        let (_root, system) = system(&[driver(RUNPATH, "/none"), a(), b()]);
        let system = system.with("LD_LIBRARY_PATH", "/opt/x");
        assert_eq!(lacks(&system, Path::new("/usr/lib/libdriver.so")), Lacks::default());
    }

    #[test]
    fn libraries_that_needs_each_other_without_end_are_looked_at_once() {
        let many: Vec<_> = (0..2 * LIBRARIES_MAX).map(|number| format!("lib{number}.so")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(lacking(&[("usr/lib/libdriver.so", needing(&many))]).len(), LIBRARIES_MAX);
    }

    #[test]
    fn what_a_driver_is_known_to_open_when_it_runs_is_told_apart() {
        let driver = ("usr/lib/libGLX_nvidia.so.0", needing(&["libX11.so.6"]));
        let found = |files: &[(&str, Vec<u8>)]| {
            let (_root, system) = system(files);
            lacks(&system, Path::new("/usr/lib/libGLX_nvidia.so.0"))
        };
        let lacks = found(std::slice::from_ref(&driver));
        assert_eq!(
            (lacks.needed, lacks.opened),
            (vec!["libX11.so.6".to_owned()], vec!["libEGL.so.1".to_owned()])
        );
        let rest = [driver, ("usr/lib/libX11.so.6", needing(&[])), ("usr/lib/libEGL.so.1", needing(&[]))];
        assert_eq!(found(&rest), Lacks::default());
    }
}
