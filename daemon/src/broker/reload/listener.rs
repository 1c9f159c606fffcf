//! A socket that the broker listens at. It is made at the start, and made again by the thread `reader` if its file was removed. Paths are looked up
//! only before the broker serves, after it has served, or on that thread, because a file system may not answer.

use super::super::upgrade::passing::PassedFile;
use outside::{Access, SocketFile};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// A socket that is listened at.
#[derive(Debug)]
pub(in crate::broker) enum Listener {
    /// A Unix socket.
    Unix(UnixListener, Kept),
    /// A port.
    Tcp(TcpListener),
}

/// A socket's file, which is made again for the same users if it is removed.
#[derive(Clone, Debug)]
pub(in crate::broker) struct Kept {
    file: SocketFile,
    access: Access,
}

/// The index of a listener whose file was removed, and the listener that was made in its place.
pub(in crate::broker) type Made = (usize, io::Result<Listener>);

impl Kept {
    /// Returns the state of the file that the next program needs.
    pub(in crate::broker) fn passed(&self) -> PassedFile {
        let (path, identity) = (self.file.path().to_owned(), self.file.identity());
        PassedFile { path, identity, mode: self.access.mode, group: self.access.group }
    }

    /// Returns the path of the file.
    pub(in crate::broker) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Listener {
    /// Listens at a path for the peers that `access` admits. A socket file that no process serves any more is replaced.
    pub(in crate::broker) fn at(path: &Path, access: Access) -> io::Result<Self> {
        let named = |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", path.display()));
        let listener = outside::listen(path, access).map_err(|error| named(&error))?;
        let file = SocketFile::at(path.to_owned()).map_err(|error| named(&error))?;
        Ok(Self::Unix(listener, Kept { file, access }))
    }

    /// Listens at a port.
    pub(in crate::broker) fn at_port(address: &SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).map_err(|error| at(&address.to_string(), &error))?;
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    /// Goes on with a socket that an earlier program has made.
    pub(in crate::broker) fn resume(socket: OwnedFd, file: Option<PassedFile>) -> Self {
        match file {
            Some(PassedFile { path, identity, mode, group }) => {
                let kept = Kept { file: SocketFile::known(path, identity), access: Access { mode, group } };
                Self::Unix(socket.into(), kept)
            }
            None => Self::Tcp(socket.into()),
        }
    }

    /// Returns the socket's file, if it has one.
    pub(in crate::broker) fn file(&self) -> Option<&SocketFile> {
        self.kept().map(|kept| &kept.file)
    }

    /// Returns the socket's file, if it has one, with all that is needed to make it again.
    pub(in crate::broker) fn kept(&self) -> Option<&Kept> {
        match self {
            Self::Unix(_, kept) => Some(kept),
            Self::Tcp(_) => None,
        }
    }

    pub(in crate::broker) fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Unix(listener, _) => listener.accept().map(|(socket, _)| socket.into()),
            Self::Tcp(listener) => listener.accept().map(|(socket, _)| socket.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Listens again at the path of a socket, if its file was removed. From then on the file is the new one.
fn made_anew(kept: &mut Kept) -> Option<io::Result<Listener>> {
    if kept.file.is_there() {
        return None;
    }
    let again = Listener::at(kept.file.path(), kept.access);
    if let Some(new) = again.as_ref().ok().and_then(Listener::kept) {
        kept.clone_from(new);
    }
    Some(again)
}

/// Listens again at the sockets whose files were removed.
pub(super) fn made_again(files: &mut [(usize, Kept)]) -> Vec<Made> {
    files.iter_mut().filter_map(|(index, kept)| Some((*index, made_anew(kept)?))).collect()
}

/// Returns an error with the name of its object.
pub(in crate::broker) fn at(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_socket_is_made_again_once_when_its_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let group = path.parent().unwrap().metadata().unwrap().gid();
        let access = Access { mode: 0o640, group: Some(group) };
        let first = Listener::at(&path, access).unwrap();
        let mut files = vec![(7, first.kept().unwrap().clone())];
        assert!(made_again(&mut files).is_empty(), "it is there");
        std::fs::remove_file(&path).unwrap();
        let [(7, Ok(second))] = &made_again(&mut files)[..] else { panic!("it is not made") };
        assert!(made_again(&mut files).is_empty(), "it is there again");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, access.mode, "for others than before");
        // A file of another owner in its place is not removed.
        first.file().unwrap().remove();
        assert!(path.exists());
        second.file().unwrap().remove();
        assert!(!path.exists());
    }
}
