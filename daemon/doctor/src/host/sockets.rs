//! Sockets and folders of a host: the users that may reach them, and the programs that listen. No check connects: a daemon would take that for a VMM.

use crate::system::{Permissions, System, User};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The file at a socket's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFile {
    /// The path.
    pub path: PathBuf,
    /// The folders on the way to the file, outermost first.
    pub folders: Vec<(PathBuf, Permissions)>,
    /// The kind of the file (whether it is a socket) and its permissions, if it exists.
    pub file: Option<(bool, Permissions)>,
    /// A process accepts connections.
    pub is_served: bool,
}

/// The state of a folder that the daemon writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Folder {
    /// This user may write there.
    Writable,
    /// The folder does not exist.
    Absent,
    /// The path leads to a file that is no folder.
    NotAFolder,
    /// This user may not write there.
    Forbidden,
}

impl SocketFile {
    /// Looks at the file at a path. `served` are the paths at which a process listens.
    pub(super) fn at(system: &System, path: &Path, served: &[PathBuf]) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let permissions =
            |folder: &Path| Some((folder.to_owned(), Permissions::from(&system.metadata(folder).ok()?)));
        let mut folders: Vec<_> = path.ancestors().skip(1).filter_map(permissions).collect();
        folders.reverse();
        let file = system.metadata(&path).ok();
        let file = file.map(|file| (file.file_type().is_socket(), Permissions::from(&file)));
        let is_served = served.contains(&path);
        Self { path, folders, file, is_served }
    }
}

impl Folder {
    pub(super) fn at(system: &System, path: &Path, user: &User) -> Self {
        match system.metadata(path) {
            Err(_) => Self::Absent,
            Ok(metadata) if !metadata.is_dir() => Self::NotAFolder,
            Ok(metadata) if user.may(3, &Permissions::from(&metadata)) => Self::Writable,
            Ok(_) => Self::Forbidden,
        }
    }
}

/// Returns the paths of Unix sockets at which a process listens (proc(5), `/proc/net/unix`).
pub(super) fn served(system: &System) -> Vec<PathBuf> {
    /// `__SO_ACCEPTCON`.
    const LISTENS: u32 = 1 << 16;
    let table = system.read("/proc/net/unix").unwrap_or_default();
    let path = |line: &str| {
        let mut fields = line.split_whitespace();
        let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
        let at = line.find(" /")?;
        (flags & LISTENS != 0).then(|| PathBuf::from(&line[at + 1..]))
    };
    table.lines().filter_map(path).collect()
}
