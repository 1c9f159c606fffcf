//! The source of frontends: a socket file that this process makes, or a descriptor given by the process that started it.

use crate::sandbox;
use outside::{Access, NotBound, SocketFile};
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The reason why there is no socket to serve.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The socket file cannot be made.
    #[error("{0}: {1}")]
    Path(PathBuf, NotBound),
    /// The descriptor is no listening socket of the right kind.
    #[error("descriptor {0}: {1}")]
    Descriptor(RawFd, io::Error),
}

/// A source of frontends.
#[derive(Debug)]
pub enum Listen {
    /// Frontends connect, one after another.
    Socket {
        /// The socket at which frontends connect.
        listener: UnixListener,
        /// The socket file to remove in the end; none if the socket was inherited.
        file: Option<SocketFile>,
    },
    /// The only frontend, which is connected already.
    Connected(Option<UnixStream>),
    /// The path at which the device process listens that this one is to follow.
    Successor(PathBuf),
}

impl Listen {
    /// Listens at `path`, for the users that `access` names, with any umask. Replaces a socket file that no process serves any more.
    pub fn at(path: &Path, access: Access) -> Result<Self, SocketError> {
        let failed = |error| SocketError::Path(path.to_owned(), error);
        let listener = outside::listen(path, access).map_err(failed)?;
        let file = SocketFile::at(path.to_owned()).map_err(|error| failed(error.into()))?;
        Ok(Self::Socket { listener, file: Some(file) })
    }

    /// Takes an inherited descriptor: a listening socket (as from systemd) or a connected one (as from libvirt).
    pub fn inherited(fd: RawFd) -> Result<Self, SocketError> {
        let failed = |e| SocketError::Descriptor(fd, e);
        let socket = sandbox::inherited(fd).map_err(failed)?;
        let listening = is_listening(&socket).map_err(failed)?;
        if !listening {
            return Ok(Self::Connected(Some(UnixStream::from(socket))));
        }
        let listener = UnixListener::from(socket);
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self::Socket { listener, file: None })
    }

    /// Returns where frontends connect, in words.
    #[must_use]
    pub fn place(&self) -> String {
        match (self, self.path()) {
            (Self::Connected(_), _) => "an inherited connection".to_owned(),
            (Self::Successor(path), _) => path.display().to_string(),
            (_, None) => "an inherited socket".to_owned(),
            (_, Some(path)) => path.display().to_string(),
        }
    }

    /// Returns the path at which frontends connect, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        if let Self::Successor(path) = self {
            return Some(path.clone());
        }
        let Self::Socket { listener, file } = self else { return None };
        let made = file.as_ref().map(|file| file.path().to_owned());
        made.or_else(|| listener.local_addr().ok()?.as_pathname().map(Path::to_owned))
    }

    /// Returns the socket file that has to be removed in the end, with an absolute path, if this process made it.
    pub fn made_at(&self) -> Option<SocketFile> {
        let Self::Socket { file: Some(file), .. } = self else { return None };
        Some(SocketFile::known(std::path::absolute(file.path()).ok()?, file.identity()))
    }
}

fn is_listening(socket: &OwnedFd) -> io::Result<bool> {
    if socket_domain(socket)? != AddressFamily::UNIX || socket_type(socket)? != SocketType::STREAM {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a Unix stream socket"));
    }
    Ok(socket_acceptconn(socket)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_file_of_ours_is_removed_in_the_end_and_one_in_use_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let live = Listen::at(&path, Access::default()).unwrap();
        // The launcher removes the file when the device process is gone.
        let made = live.made_at().unwrap();
        assert!(made.path() == path && made.is_there());
        let error = Listen::at(&path, Access::default()).unwrap_err().to_string();
        let start = format!("{}: another process serves this socket; ", path.display());
        assert!(error.starts_with(&start), "{error}");
    }

    #[test]
    fn descriptors_that_are_no_socket_are_refused() {
        assert!(matches!(Listen::inherited(1), Err(SocketError::Descriptor(1, _))));
        assert!(matches!(Listen::inherited(1_000_000), Err(SocketError::Descriptor(_, _))));
    }
}
