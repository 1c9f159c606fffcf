//! Groups of users: their numbers by name, and the folders that their members may pass.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file of the system's groups.
const GROUPS: &str = "/etc/group";
/// The most bytes of that file.
const BYTES: u64 = 16 << 20;

/// There is no group of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no group of {GROUPS}, and no number; make it (`groupadd`), or name another")]
pub struct NoGroup;

/// Returns a group's number, given as the number or as the group's name in `/etc/group`.
///
/// # Errors
///
/// There is no group of this name.
pub fn group(text: &str) -> Result<u32, NoGroup> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let groups = super::read(GROUPS, BYTES).unwrap_or_default();
    number_of(text, &String::from_utf8_lossy(&groups)).ok_or(NoGroup)
}

fn number_of(name: &str, groups: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Returns the folder nearest to a path that members of a group may not pass on their way there, if any. Ignores access control lists.
#[must_use]
pub fn closed_folder(path: &Path, group: u32) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let is_closed = |folder: &&Path| folder.metadata().is_ok_and(|found| !lets_pass(&found, group));
    path.ancestors().skip(1).find(is_closed).map(Path::to_owned)
}

fn lets_pass(folder: &Metadata, group: u32) -> bool {
    let bit = if folder.gid() == group { 0o010 } else { 0o001 };
    folder.mode() & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn groups_have_names_and_numbers() {
        let groups = "root:x:0:\noperators:x:107:alice,bob\nbroken\n";
        assert_eq!(number_of("operators", groups), Some(107));
        assert_eq!((number_of("x", groups), number_of("broken", groups)), (None, None));
        assert_eq!((group("7"), group("no such group")), (Ok(7), Err(NoGroup)));
    }

    #[test]
    fn the_folder_that_keeps_a_group_out_is_found() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("folder");
        create_dir(&folder).unwrap();
        let own = folder.metadata().unwrap().gid();
        let closed = |outer: u32, inner: u32, group: u32| {
            set_permissions(root.path(), Permissions::from_mode(outer)).unwrap();
            set_permissions(&folder, Permissions::from_mode(inner)).unwrap();
            closed_folder(&folder.join("socket"), group)
        };
        assert_eq!(closed(0o711, 0o700, own), Some(folder.clone()));
        assert_eq!(closed(0o711, 0o701, own), Some(folder.clone()), "the group's own permission counts");
        assert_eq!(closed(0o700, 0o711, own), Some(root.path().to_owned()));
        assert_eq!(closed(0o711, 0o710, own.wrapping_add(1)), Some(folder.clone()));
        // A folder above the test's own may be closed, too.
        let above = closed_folder(root.path(), own);
        assert_eq!(closed(0o711, 0o710, own), above);
        assert_eq!(
            closed(0o711, 0o701, own.wrapping_add(1)),
            closed_folder(root.path(), own.wrapping_add(1))
        );
    }
}
