//! The source of frontends: a socket file of ours, or a descriptor given by whoever started us.

use crate::sandbox;
use rustix::fs::{Mode, fchmod};
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::Permissions;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The reason why there is no socket to serve.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process accepts connections there.
    #[error("{0}: another process serves this socket")]
    InUse(PathBuf),
    /// Something else lies there.
    #[error("{0}: exists and is no socket")]
    NotASocket(PathBuf),
    /// The socket file cannot be made.
    #[error("{0}: {1}")]
    Path(PathBuf, io::Error),
    /// The descriptor is not what it should be.
    #[error("descriptor {0}: {1}")]
    Descriptor(RawFd, io::Error),
}

/// Frontends that may wait until they are accepted.
const BACKLOG: i32 = 128;

/// The permission to connect to a socket file: its mode, and its group if that is not the daemon's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Permissions, as of `chmod`.
    pub mode: u32,
    /// A group's number.
    pub group: Option<u32>,
}

impl Default for Access {
    /// The daemon's user alone.
    fn default() -> Self {
        Self { mode: 0o600, group: None }
    }
}

/// A source of frontends.
#[derive(Debug)]
pub enum Listen {
    /// Frontends connect, one after another.
    Socket {
        /// The socket at which frontends connect.
        listener: UnixListener,
        /// The socket file to remove in the end; none if somebody else made it.
        path: Option<PathBuf>,
    },
    /// The only frontend there will be.
    Connected(Option<UnixStream>),
}

impl Listen {
    /// Listens at `path`, for those who have access whatever the umask is. A socket file that nobody serves any more is replaced.
    pub fn at(path: &Path, access: Access) -> Result<Self, SocketError> {
        let failed = |e| SocketError::Path(path.to_owned(), e);
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(SocketError::NotASocket(path.to_owned()));
            }
            Ok(_) => match UnixStream::connect(path) {
                Ok(_) => return Err(SocketError::InUse(path.to_owned())),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            },
        }
        let listener = bind(path).map_err(failed)?;
        if access.group.is_some() {
            std::os::unix::fs::chown(path, None, access.group).map_err(failed)?;
        }
        std::fs::set_permissions(path, Permissions::from_mode(access.mode)).map_err(failed)?;
        Ok(Self::Socket { listener, path: Some(path.to_owned()) })
    }

    /// Serves an inherited descriptor: a listening socket (as from systemd) or a connected one (as from libvirt).
    pub fn inherited(fd: RawFd) -> Result<Self, SocketError> {
        let failed = |e| SocketError::Descriptor(fd, e);
        let socket = sandbox::inherited(fd).map_err(failed)?;
        let listening = is_listening(&socket).map_err(failed)?;
        if !listening {
            return Ok(Self::Connected(Some(UnixStream::from(socket))));
        }
        let listener = UnixListener::from(socket);
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self::Socket { listener, path: None })
    }

    /// Returns where frontends connect, in words.
    #[must_use]
    pub fn place(&self) -> String {
        let Self::Socket { listener, .. } = self else { return "an inherited connection".to_owned() };
        let address = listener.local_addr().ok();
        let path = address.as_ref().and_then(|address| address.as_pathname());
        path.map_or_else(|| "an inherited socket".to_owned(), |path| path.display().to_string())
    }

    /// The socket file that has to be removed in the end, if it is of our making. An absolute path.
    pub fn made_at(&self) -> Option<PathBuf> {
        match self {
            Self::Socket { path: Some(path), .. } => std::path::absolute(path).ok(),
            _ => None,
        }
    }
}

/// A listener whose file is for this user alone from its first moment, until it is for others as well. The umask is not touched, which other
/// threads have as well.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
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
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());

        let live = Listen::at(&path, Access::default()).unwrap();
        assert!(matches!(Listen::at(&path, Access::default()), Err(SocketError::InUse(_))));
        UnixStream::connect(&path).unwrap();
        // The launcher removes it, when all is over.
        assert_eq!(live.made_at(), Some(path.clone()));
        // The file is for its owner alone, and what other threads make is not touched by that.
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        drop(live);

        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Listen::at(&path, Access::default()), Err(SocketError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn descriptors_that_are_no_socket_are_refused() {
        assert!(matches!(Listen::inherited(1), Err(SocketError::Descriptor(1, _))));
        assert!(matches!(Listen::inherited(1_000_000), Err(SocketError::Descriptor(_, _))));
    }
}
