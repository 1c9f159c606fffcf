//! Files that are opened without a wait, to write them, or to read them up to a bound. A path may lead to a pipe whose other end no process has, or
//! to a device that never ends: these functions open such a file without a wait, find out its kind, and refuse it.

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, openat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The reason why a file is not opened or read.
#[derive(Debug, thiserror::Error)]
pub enum NotRead {
    /// The system refuses.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The path is that of a pipe, a device, a socket or a folder.
    #[error("is no regular file; put a regular file there, or name another path")]
    NotAFile,
    /// The file has more than this many bytes.
    #[error("has more than {0} bytes, which is the limit; make it shorter, or name another file")]
    TooLong(u64),
}

impl From<NotRead> for io::Error {
    fn from(error: NotRead) -> Self {
        match error {
            NotRead::System(error) => error,
            other => Self::new(io::ErrorKind::InvalidData, other),
        }
    }
}

/// Opens a regular file to read it. Follows symbolic links.
///
/// # Errors
///
/// The system refuses, or the file is of another kind.
pub fn open(path: impl AsRef<Path>) -> Result<File, NotRead> {
    open_by(CWD, path.as_ref(), OFlags::empty())
}

/// Reads a regular file of at most `bytes_max` bytes. Follows symbolic links.
///
/// # Errors
///
/// The system refuses, or the file is of another kind or longer.
pub fn read(path: impl AsRef<Path>, bytes_max: u64) -> Result<Vec<u8>, NotRead> {
    read_all(open(path)?, bytes_max)
}

/// Reads a regular file like [`read`], of this name in a folder. Does not follow a symbolic link of this name.
///
/// # Errors
///
/// As [`read`], or the name is that of a symbolic link.
pub fn read_in(folder: impl AsFd, name: &str, bytes_max: u64) -> Result<Vec<u8>, NotRead> {
    read_all(open_by(folder, Path::new(name), OFlags::NOFOLLOW)?, bytes_max)
}

/// The files that [`create`] makes or takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    /// Regular files, for a writer that may not wait for a reader.
    Regular,
    /// Regular files, and existing files of other kinds: pipes with a reader, terminals, devices. Writes to them wait.
    Any,
}

/// Makes a file, or empties an existing one, to write it. Each write goes to the end of the file, even after another process has truncated it.
/// Follows symbolic links.
///
/// # Errors
///
/// The system refuses, the file is of a kind that is not wanted, or a pipe without a reader.
pub fn create(path: impl AsRef<Path>, makes: Makes) -> io::Result<File> {
    let how = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
    let flags = how | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = openat(CWD, path.as_ref(), flags, Mode::from_raw_mode(0o666));
    let file = match opened {
        Err(Errno::NXIO) if makes == Makes::Regular => return Err(NotRead::NotAFile.into()),
        opened => File::from(opened?),
    };
    match (is_regular(&file)?, makes) {
        (true, _) => file.set_len(0)?,
        (false, Makes::Regular) => return Err(NotRead::NotAFile.into()),
        (false, Makes::Any) => fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?,
    }
    Ok(file)
}

/// Makes a new file to write it, which only this user may read. Takes no existing file or symbolic link.
///
/// # Errors
///
/// The path already exists, or the system refuses.
pub fn create_new(path: impl AsRef<Path>) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

fn open_by(folder: impl AsFd, path: &Path, how: OFlags) -> Result<File, NotRead> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | how;
    let file = match openat(folder, path, flags, Mode::empty()) {
        // The file is a socket, or a device that does not exist.
        Err(Errno::NXIO) => return Err(NotRead::NotAFile),
        opened => opened.map_err(io::Error::from)?,
    };
    if !is_regular(&file)? {
        return Err(NotRead::NotAFile);
    }
    Ok(file.into())
}

fn is_regular(file: impl AsFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(file)?.st_mode) == FileType::RegularFile)
}

fn read_all(file: File, bytes_max: u64) -> Result<Vec<u8>, NotRead> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(NotRead::TooLong(bytes_max));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mknodat;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_regular_files_are_read_and_nothing_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "text").unwrap();
        symlink(path("file"), path("link")).unwrap();
        symlink("/dev/zero", path("endless")).unwrap();
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        for name in ["file", "link"] {
            assert_eq!(read(path(name), 4).unwrap(), b"text");
        }
        for name in ["endless", "pipe", "socket", ""] {
            assert!(matches!(read(path(name), 4), Err(NotRead::NotAFile)), "{name}");
        }
        assert!(matches!(read(path("none"), 4), Err(NotRead::System(_))));
        assert!(!read("/proc/self/stat", 4096).unwrap().is_empty(), "a file whose size is told as 0");
    }

    #[test]
    fn a_file_is_read_up_to_its_bound_and_not_beyond() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "12345").unwrap();
        assert!(read(file.path(), 5).is_ok() && read(file.path(), u64::MAX).is_ok());
        assert!(matches!(read(file.path(), 4), Err(NotRead::TooLong(4))));
    }

    #[test]
    fn what_is_written_is_a_new_file_and_a_pipe_only_where_it_is_wanted_and_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "what was there").unwrap();
        symlink(path("file"), path("link")).unwrap();
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        for makes in [Makes::Regular, Makes::Any] {
            for name in ["file", "link", "new"] {
                create(path(name), makes).unwrap().write_all(b"text").unwrap();
                assert_eq!(read(path(name), 9).unwrap(), b"text", "{name}");
            }
            assert!(create(path("pipe"), makes).is_err(), "no process reads it");
            assert!(create(folder.path(), makes).is_err());
        }
        let _reader = File::options().read(true).write(true).open(path("pipe")).unwrap();
        let error = create(path("pipe"), Makes::Regular).unwrap_err().to_string();
        assert!(error.starts_with("is no regular file; "), "{error}");
        let mut pipe = create(path("pipe"), Makes::Any).unwrap();
        pipe.write_all(b"text").unwrap();
        assert!(!fcntl_getfl(&pipe).unwrap().contains(OFlags::NONBLOCK), "writes wait");
    }

    #[test]
    fn a_new_file_takes_the_place_of_nothing_and_is_for_its_user_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "text").unwrap();
        symlink(path("nowhere"), path("link")).unwrap();
        for name in ["file", "link", "."] {
            let refused = create_new(path(name)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{name}");
        }
        assert!(!path("nowhere").exists() && fs::read(path("file")).unwrap() == b"text");
        create_new(path("new")).unwrap().write_all(b"text").unwrap();
        assert_eq!(fs::metadata(path("new")).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_link_in_a_folder_of_ours_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "text").unwrap();
        symlink("file", folder.path().join("link")).unwrap();
        let opened = File::open(folder.path()).unwrap();
        assert_eq!(read_in(&opened, "file", 9).unwrap(), b"text");
        assert!(matches!(read_in(&opened, "link", 9), Err(NotRead::System(_))));
    }
}
