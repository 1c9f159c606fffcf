//! The things that the owner of a folder puts at a path in it: files that are never read to their end, sockets at which nobody accepts.

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

/// A socket that listens and has no room for one more who connects.
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

/// Puts something at a path where nothing is.
pub type Put = fn(&Path) -> Result<()>;

/// Things that are no files to be read, by their names.
pub const ODD_FILES: [(&str, Put); 3] = [
    ("a pipe that nobody writes to", pipe),
    ("a device that never ends", |path| Ok(symlink("/dev/zero", path)?)),
    ("a folder", |path| Ok(fs::create_dir(path)?)),
];

/// Makes a pipe that nobody has opened.
///
/// # Errors
/// The system refuses.
pub fn pipe(path: &Path) -> Result<()> {
    Ok(mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?)
}

/// Removes what one of [`ODD_FILES`] has put at a path.
///
/// # Errors
/// The system refuses.
pub fn remove(path: &Path) -> Result<()> {
    match path.symlink_metadata()?.is_dir() {
        true => Ok(fs::remove_dir(path)?),
        false => Ok(fs::remove_file(path)?),
    }
}
