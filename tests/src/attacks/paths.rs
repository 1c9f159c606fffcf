//! Files of unusual kinds that a folder's owner can put at a path in it: files without an end, sockets that accept no connection.

use anyhow::{Result, bail};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A listening socket whose queue of connections is full.
#[derive(Debug)]
pub struct Full {
    _listener: OwnedFd,
    _waiting: Vec<OwnedFd>,
}

impl Full {
    /// Listens at `path`.
    ///
    /// # Errors
    /// The system refuses.
    pub fn at(path: &Path) -> Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let listener = stream()?;
        bind(&listener, &address)?;
        listen(&listener, 1)?;
        let mut waiting = Vec::new();
        loop {
            let peer = stream()?;
            match connect(&peer, &address) {
                Ok(()) => waiting.push(peer),
                Err(Errno::AGAIN) => return Ok(Self { _listener: listener, _waiting: waiting }),
                Err(error) => bail!("{}: {error}", path.display()),
            }
        }
    }
}

fn stream() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// A function that puts a file of an unusual kind at a free path.
pub type Put = fn(&Path) -> Result<()>;

/// Files that cannot be read as regular files, by their names.
pub const ODD_FILES: [(&str, Put); 3] = [
    ("a pipe without a writer", pipe),
    ("a device that never ends", |path| Ok(symlink("/dev/zero", path)?)),
    ("a folder", |path| Ok(fs::create_dir(path)?)),
];

/// Makes a pipe that no process has opened.
///
/// # Errors
/// The system refuses.
pub fn pipe(path: &Path) -> Result<()> {
    Ok(mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?)
}

/// Removes the file that a function of [`ODD_FILES`] has put at a path.
///
/// # Errors
/// The system refuses.
pub fn remove(path: &Path) -> Result<()> {
    match path.symlink_metadata()?.is_dir() {
        true => Ok(fs::remove_dir(path)?),
        false => Ok(fs::remove_file(path)?),
    }
}
