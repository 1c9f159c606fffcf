//! The system as checks look at it: files below a root folder, and the environment. Only this module reads files of the system, so a test can prepare
//! a folder that looks like a broken system.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The most bytes that are read of a file: libraries have some megabytes.
const FILE_MAX: u64 = 64 << 20;

/// The system that the checks look at.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
    /// The environment of this process.
    environment: BTreeMap<String, String>,
}

impl System {
    /// Returns the system on which this process runs, with its files below `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let environment = std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect();
        Self { root: root.to_owned(), environment }
    }

    /// Returns the system with an empty environment.
    #[cfg(test)]
    pub(crate) fn without_variables(mut self) -> Self {
        self.environment.clear();
        self
    }

    /// Returns the system with a variable set.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Returns the value of a variable, unless it is empty.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the path at which a file of the system lies.
    #[must_use]
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Opens a regular file, if it can be read. Does not wait for a pipe.
    #[must_use]
    pub fn open(&self, path: impl AsRef<Path>) -> Option<File> {
        outside::open(self.path(path)).ok()
    }

    /// Returns the content of a regular file, if it can be read: the first 64 MiB.
    #[must_use]
    pub fn bytes(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(path)?.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns the text of a file without surrounding space, if it can be read.
    #[must_use]
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(String::from_utf8_lossy(&self.bytes(path)?).trim().to_owned())
    }

    /// Returns the number that a file consists of.
    #[must_use]
    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// Returns the names in a folder, sorted.
    #[must_use]
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns the metadata of a file.
    ///
    /// # Errors
    ///
    /// The file does not exist, or cannot be reached.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        self.path(path).metadata()
    }

    /// Returns whether the file exists.
    #[must_use]
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.metadata(path).is_ok()
    }

    /// Returns the last part of the path in a symbolic link.
    #[must_use]
    pub fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = self.path(path).read_link().ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the name of a group, or its number.
    #[must_use]
    pub fn group(&self, number: u32) -> String {
        let groups = self.read("/etc/group").unwrap_or_default();
        let named = groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, id) = (fields.next()?, fields.nth(1)?);
            (id == number.to_string()).then(|| name.to_owned())
        });
        named.unwrap_or_else(|| number.to_string())
    }

    /// Returns a user of the system's list, by name.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<User> {
        let users = self.read("/etc/passwd")?;
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2).map(str::parse);
        let (user, group) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        let groups = self.read("/etc/group").unwrap_or_default();
        let member = |line: &str| {
            let mut fields = line.split(':').skip(2);
            let (id, members) = (fields.next()?, fields.next()?);
            members.split(',').any(|member| member == name).then(|| id.parse().ok())?
        };
        let groups = std::iter::once(group).chain(groups.lines().filter_map(member)).collect();
        Some(User { user, groups })
    }
}

/// A user, as file permissions see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The number of the user.
    pub user: u32,
    /// The numbers of the user's groups.
    pub groups: Vec<u32>,
}

impl User {
    /// Returns the user of this process.
    #[must_use]
    pub fn own() -> Self {
        use rustix::process::{getegid, geteuid, getgroups};
        let further = getgroups().unwrap_or_default();
        let groups = std::iter::once(getegid()).chain(further).map(rustix::process::Gid::as_raw).collect();
        Self { user: geteuid().as_raw(), groups }
    }

    /// Returns whether a file's mode gives this user `wanted` (4 to read, 2 to write, 1 to search or execute). Ignores access control lists.
    #[must_use]
    pub fn may(&self, wanted: u32, file: &Permissions) -> bool {
        let given = match file {
            _ if self.user == 0 => 7,
            Permissions { mode, owner, .. } if *owner == self.user => mode >> 6,
            Permissions { mode, group, .. } if self.groups.contains(group) => mode >> 3,
            Permissions { mode, .. } => *mode,
        };
        given & wanted == wanted
    }
}

/// The permissions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The mode, as of `chmod`.
    pub mode: u32,
    /// The number of the owner.
    pub owner: u32,
    /// The number of the group.
    pub group: u32,
}

impl From<&Metadata> for Permissions {
    fn from(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self { mode: metadata.mode() & 0o7777, owner: metadata.uid(), group: metadata.gid() }
    }
}

/// Systems that tests make.
#[cfg(test)]
pub(crate) mod made {
    use std::fs;
    use std::path::Path;

    /// Makes the file at this path below `root`, and the folders that lead to it.
    pub(crate) fn put(root: &Path, path: &str, content: impl AsRef<[u8]>) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::made::put;
    use super::*;

    #[test]
    fn the_first_class_that_fits_decides_and_root_may_all() {
        let user = User { user: 7, groups: vec![7, 44] };
        let file = |mode, owner, group| Permissions { mode, owner, group };
        assert!(user.may(6, &file(0o660, 0, 44)));
        assert!(!user.may(6, &file(0o660, 0, 45)));
        assert!(!user.may(2, &file(0o577, 7, 44)));
        assert!(user.may(6, &file(0o006, 0, 0)));
        assert!(User { user: 0, groups: vec![] }.may(6, &file(0, 7, 7)));
    }

    #[test]
    fn users_and_groups_are_found_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "etc/passwd", "root:x:0:0::/:\nvm:x:64055:103::/:/bin/false\n");
        put(root.path(), "etc/group", "kvm:x:104:x,vm\nrender:x:105:\n");
        let system = System::below(root.path());
        assert_eq!(system.user("vm"), Some(User { user: 64055, groups: vec![103, 104] }));
        assert_eq!(system.user("nobody"), None);
        assert_eq!((system.group(105), system.group(9)), ("render".into(), "9".into()));
    }
}
