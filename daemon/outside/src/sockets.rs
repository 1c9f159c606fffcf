//! Unix sockets at paths. The owner of the folder may replace the file there at any moment, and the peer need not accept. So no function here waits
//! for a peer longer than the caller allows, and rights are given only to the file that was made here.

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, chmodat, chownat, fchmod, fstat, openat, statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The reason why the daemon cannot listen at a socket.
#[derive(Debug, thiserror::Error)]
pub enum NotBound {
    /// Another process accepts connections there, or lets them wait.
    #[error("another process serves this socket; end that process, or name another path")]
    InUse,
    /// A file that is no socket lies there.
    #[error("exists and is no socket; remove it, or name another path")]
    NotASocket,
    /// Another process put another file in place of the socket file that was just made.
    #[error(
        "was replaced while it was being made; name a path in a folder that only trusted users may write to"
    )]
    Replaced,
    /// The folder does not exist.
    #[error("there is no folder {}; make it (`mkdir -p {}`), or name another path", .0.display(), .0.display())]
    NoFolder(PathBuf),
    /// The daemon's user may not give files to this group.
    #[error("cannot be given to group {0}: {1}; name a group that the daemon's user is in")]
    Group(u32, io::Error),
    /// The system refuses.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for NotBound {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// The permission to connect to a socket file: its mode, and its group if that is not the daemon's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Permissions, as of `chmod`.
    pub mode: u32,
    /// A group's number.
    pub group: Option<u32>,
}

impl Default for Access {
    /// Returns the access of the daemon's user alone.
    fn default() -> Self {
        Self { mode: OWN_MODE, group: None }
    }
}

impl Access {
    /// Returns the access of the daemon's user, and of the members of a group, if one is given.
    #[must_use]
    pub fn of_group(group: Option<u32>) -> Self {
        Self { mode: if group.is_some() { GROUP_MODE } else { OWN_MODE }, group }
    }
}

/// The mode of a file for its owner alone.
const OWN_MODE: u32 = 0o600;
/// The mode of a file for its owner and its group.
const GROUP_MODE: u32 = 0o660;
/// Peers that may wait until they are accepted.
const BACKLOG: i32 = 128;

/// Listens at `path` without a wait, for the users that `access` names, with any umask. Replaces a socket file that no process serves any more.
///
/// # Errors
///
/// Another file is there already, or the system refuses.
pub fn listen(path: &Path, access: Access) -> Result<UnixListener, NotBound> {
    let place = Place::of(path)?;
    place.clear()?;
    let socket = stream(SocketFlags::NONBLOCK)?;
    // From its first moment the file has no more rights than these. The umask, which all threads share, may leave fewer.
    fchmod(&socket, Mode::from_raw_mode(OWN_MODE))?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    place.admit(access)?;
    Ok(socket.into())
}

/// Connects to the socket at `path`, and waits at most `patience` until there is room for one more peer there. Writes wait as long.
///
/// # Errors
///
/// No process listens there, no process accepts in time ([`io::ErrorKind::TimedOut`]), or the system refuses.
pub fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = stream(SocketFlags::empty())?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    let address = SocketAddrUnix::new(path)?;
    match retry_on_intr(|| net::connect(&socket, &address)) {
        Err(Errno::AGAIN) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, "no process accepts connections there"))
        }
        connected => Ok(connected.map(|()| socket.into())?),
    }
}

/// The file of a socket that was made at a path. Another file may have taken its place since.
#[derive(Clone, Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// Returns the file that is at this path now.
    ///
    /// # Errors
    ///
    /// No file is there, or the system refuses.
    pub fn at(path: PathBuf) -> io::Result<Self> {
        let file = path.symlink_metadata()?;
        Ok(Self { path, identity: (file.dev(), file.ino()) })
    }

    /// Returns the file that was at this path, by its device and inode ([`Self::identity`]).
    #[must_use]
    pub fn known(path: PathBuf, identity: (u64, u64)) -> Self {
        Self { path, identity }
    }

    /// Returns device and inode.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file is still at its path.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.path.symlink_metadata().is_ok_and(|file| (file.dev(), file.ino()) == self.identity)
    }

    /// Removes the file, unless another has its place.
    pub fn remove(&self) {
        let Ok(place) = Place::of(&self.path) else { return };
        if place.stat().is_ok_and(|there| (there.st_dev, there.st_ino) == self.identity) {
            // Another process may have removed the file meanwhile, which is just as good.
            let _ = unlinkat(&place.folder, place.name, AtFlags::empty());
        }
    }
}

fn stream(more: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | more, None)
}

/// A path whose folder is opened once, so that all steps happen in the same folder.
struct Place<'p> {
    path: &'p Path,
    folder: OwnedFd,
    name: &'p OsStr,
}

impl<'p> Place<'p> {
    fn of(path: &'p Path) -> Result<Self, NotBound> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(folder, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR) => Err(NotBound::NoFolder(folder.to_owned())),
            opened => Ok(Self { path, folder: opened?, name }),
        }
    }

    fn stat(&self) -> Result<Stat, Errno> {
        statat(&self.folder, self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Removes a socket file that no process serves.
    fn clear(&self) -> Result<(), NotBound> {
        match self.stat() {
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(found) if !is_socket(&found) => Err(NotBound::NotASocket),
            Ok(_) if self.is_served()? => Err(NotBound::InUse),
            Ok(_) => Ok(unlinkat(&self.folder, self.name, AtFlags::empty())?),
        }
    }

    /// Returns whether a process listens, even if it has no room for one more connection.
    fn is_served(&self) -> Result<bool, Errno> {
        let socket = stream(SocketFlags::NONBLOCK)?;
        match net::connect(&socket, &SocketAddrUnix::new(self.path)?) {
            Ok(()) | Err(Errno::AGAIN) => Ok(true),
            Err(Errno::CONNREFUSED) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives rights to the socket file that was just made, by its descriptor: if the file was replaced, even by a link to another file, that other
    /// file stays unchanged.
    fn admit(&self, access: Access) -> Result<(), NotBound> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&self.folder, self.name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Err(NotBound::Replaced),
            opened => opened?,
        };
        let found = fstat(&file)?;
        // A file with only one name is no link to a socket that was made elsewhere.
        if !is_socket(&found) || found.st_uid != rustix::process::geteuid().as_raw() || found.st_nlink != 1 {
            return Err(NotBound::Replaced);
        }
        if let Some(group) = access.group {
            let given = chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH);
            given.map_err(|error| NotBound::Group(group, error.into()))?;
        } else if found.st_mode & 0o7777 == access.mode {
            return Ok(());
        }
        // `fchmod` does not work on such a descriptor, but it has a path that leads to this file alone.
        let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(chmodat(rustix::fs::CWD, by_descriptor, Mode::from_raw_mode(access.mode), AtFlags::empty())?)
    }
}

fn is_socket(file: &Stat) -> bool {
    FileType::from_raw_mode(file.st_mode) == FileType::Socket
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use std::fs::{self, Metadata, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        (folder, path)
    }

    fn mode(file: &Metadata) -> u32 {
        file.permissions().mode() & 0o7777
    }

    /// Makes a socket whose process listens without accepting, and as many connections as there is room for.
    fn full(path: &Path) -> (OwnedFd, Vec<OwnedFd>) {
        let listener = stream(SocketFlags::empty()).unwrap();
        let address = SocketAddrUnix::new(path).unwrap();
        net::bind(&listener, &address).unwrap();
        net::listen(&listener, 1).unwrap();
        let mut peers = Vec::new();
        loop {
            let peer = stream(SocketFlags::NONBLOCK).unwrap();
            match net::connect(&peer, &address) {
                Ok(()) => peers.push(peer),
                Err(error) => break assert_eq!(error, Errno::AGAIN),
            }
        }
        (listener, peers)
    }

    #[test]
    fn a_socket_with_no_room_is_served_and_nobody_waits_for_it() {
        let (_folder, path) = folder();
        let _full = full(&path);
        assert!(matches!(listen(&path, Access::default()), Err(NotBound::InUse)));
        let error = connect(&path, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn what_nobody_serves_is_replaced_and_what_is_no_socket_stays() {
        let (_folder, path) = folder();
        drop(UnixListener::bind(&path).unwrap());
        let live = listen(&path, Access::default()).unwrap();
        assert_eq!(mode(&path.metadata().unwrap()), OWN_MODE);
        assert!(matches!(listen(&path, Access::default()), Err(NotBound::InUse)));
        drop((connect(&path, Duration::from_secs(300)).unwrap(), live));
        fs::remove_file(&path).unwrap();
        for place in [|path: &Path| fs::write(path, "precious"), |path: &Path| symlink("/dev/null", path)] {
            place(&path).unwrap();
            assert!(matches!(listen(&path, Access::default()), Err(NotBound::NotASocket)));
            assert!(path.symlink_metadata().is_ok());
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_named_with_the_remedy() {
        let (folder, path) = folder();
        fs::write(&path, "").unwrap();
        for missing in [folder.path().join("none"), path] {
            let said = listen(&missing.join("socket"), Access::default()).unwrap_err().to_string();
            let missing = missing.display();
            assert_eq!(
                said,
                format!("there is no folder {missing}; make it (`mkdir -p {missing}`), or name another path")
            );
        }
    }

    #[test]
    fn only_the_group_that_is_named_gets_access() {
        assert_eq!(Access::of_group(None), Access::default());
        assert_eq!(Access::of_group(Some(7)), Access { mode: 0o660, group: Some(7) });
    }

    #[test]
    fn access_is_given_whatever_the_umask_says() {
        let (_folder, path) = folder();
        let group = rustix::process::getegid().as_raw();
        let _live = listen(&path, Access { mode: 0o666, group: Some(group) }).unwrap();
        let file = path.metadata().unwrap();
        assert_eq!((mode(&file), file.gid()), (0o666, group));
    }

    #[test]
    fn whoever_replaces_the_socket_file_gets_no_rights_to_another_file() {
        let (folder, path) = folder();
        let secret = folder.path().join("secret");
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        let elsewhere = folder.path().join("elsewhere");
        let _other = UnixListener::bind(&elsewhere).unwrap();
        fs::set_permissions(&elsewhere, Permissions::from_mode(0o600)).unwrap();
        let access = Access { mode: 0o666, group: Some(rustix::process::getegid().as_raw()) };
        let swaps: [(&str, &dyn Fn() -> io::Result<()>); 5] = [
            ("a link", &|| symlink(&secret, &path)),
            ("a link to a socket", &|| symlink(&elsewhere, &path)),
            ("a second name", &|| fs::hard_link(&secret, &path)),
            ("a second name of a socket", &|| fs::hard_link(&elsewhere, &path)),
            ("nothing", &|| Ok(())),
        ];
        for (what, swap) in swaps {
            swap().unwrap();
            let admitted = Place::of(&path).unwrap().admit(access);
            assert!(matches!(admitted, Err(NotBound::Replaced)), "{what}: {admitted:?}");
            for file in [&secret, &elsewhere] {
                assert_eq!(mode(&file.metadata().unwrap()), 0o600, "{what}");
            }
            let _ = fs::remove_file(&path);
        }
    }

    #[test]
    fn only_the_file_that_is_meant_is_removed() {
        let (_folder, path) = folder();
        let _first = listen(&path, Access::default()).unwrap();
        let file = SocketFile::at(path.clone()).unwrap();
        assert!(file.is_there());
        let away = path.with_extension("away");
        fs::rename(&path, &away).unwrap();
        let _second = listen(&path, Access::default()).unwrap();
        file.remove();
        assert!(path.exists() && !file.is_there());
        fs::rename(&away, &path).unwrap();
        file.remove();
        assert!(!path.exists() && statat(CWD, &path, AtFlags::empty()).is_err());
        assert!(SocketFile::at(path).is_err());
    }
}
