//! The paths in the file, and a check of which paths lead to the same place: `..` and symbolic links give a place more than one path.

use super::Draft;
use super::problem::{Problem, table_of_vm};
use crate::options::PATH_BYTES;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Returns a problem for each socket or folder that two VMs have in common.
pub(super) fn check(vms: &[Draft]) -> Vec<Problem> {
    let mut taken: BTreeMap<PathBuf, String> = BTreeMap::new();
    let mut twice = Vec::new();
    for Draft { vm, own_paths } in vms {
        for (key, path) in own_paths {
            if let Some(other) = taken.insert(meant(path), format!("{key} of [{}]", vm.table())) {
                twice.push(Problem::of_vm(&vm.name, key, format!("{} is {other} as well", path.display())));
            }
        }
    }
    twice
}

/// Returns the sockets of VMs, each with its VM.
pub(super) fn sockets_of_vms(file: &Table) -> BTreeMap<PathBuf, String> {
    let vms = file.get("vm").and_then(Value::as_table).into_iter().flatten();
    let own = |(name, vm): (&String, &Value)| {
        Some((
            meant(Path::new(vm.get("socket-path")?.as_str()?)),
            format!("socket-path of [{}]", table_of_vm(name)),
        ))
    };
    vms.filter_map(own).collect()
}

/// Returns the path from the root, if the system tells this process its folder.
pub(in crate::broker) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the path without symbolic links and `..`, as far as it exists now.
pub(super) fn meant(path: &Path) -> PathBuf {
    let path = absolute(path);
    if path.as_os_str().len() > PATH_BYTES {
        return path;
    }
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => meant(folder).join(name),
        // The path ends with `..` after a folder that does not exist.
        (Some(folder), None) => meant(folder).parent().unwrap_or(Path::new("/")).to_owned(),
        (None, _) => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_place_has_one_path_whatever_links_and_dots_lead_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("real/below")).unwrap();
        symlink("real", root.join("link")).unwrap();
        symlink("real/below", root.join("deep")).unwrap();
        for (path, place) in [
            ("real/socket", "real/socket"),
            ("link/socket", "real/socket"),
            // The target of the link counts, not its place.
            ("deep/../socket", "real/socket"),
            ("real/none/../socket", "real/socket"),
            ("none/../../socket", "../socket"),
            ("deep", "real/below"),
        ] {
            assert_eq!(meant(&root.join(path)), meant(&root.join(place)), "{path}");
        }
        assert_eq!(meant(&root.join("link/new/socket")), root.join("real/new/socket"));
        assert_ne!(meant(&root.join("link/a")), meant(&root.join("link/b")));
        let endless = root.join("../".repeat(1 << 20));
        assert_eq!(meant(&endless), absolute(&endless));
    }
}
