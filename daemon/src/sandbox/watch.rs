//! Notices that files which a device process depends on were replaced since it started: its driver's, its socket's, and the program's.
//!
//! Such a file has been replaced if its path leads to another file, or to the same file with other content. The kernel wakes the launcher when a file
//! in these folders changes (inotify), so the launcher does not look while no file changes. If the user's inotify instances are used up
//! (`fs.inotify.max_user_instances`), the launcher looks when it starts a worker.

use super::this_program::{OWN, program_path};
use crate::ipc::{DriverFamily, Replaced};
use doctor::manifests;
use doctor::system::System;
use outside::SocketFile;
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files that are watched.
#[derive(Debug)]
pub(super) struct Watch {
    /// Files of drivers as they were at the start.
    drivers: Vec<File>,
    socket: Option<File>,
    /// The file that this program was started from.
    program: Option<File>,
    /// Events of these files' folders, once the device process wants to hear of them.
    events: Option<OwnedFd>,
    /// True once the device process wants to hear of replaced files.
    is_wanted: bool,
}

/// A file, and its identity at the start.
#[derive(Debug)]
struct File {
    path: PathBuf,
    was: Option<Identity>,
}

/// Device, inode, bytes, and the time of the last change of the content, by which two files differ.
type Identity = (u64, u64, u64, i64, i64);

/// The part of the name of a driver's file that says that it is NVIDIA's.
const NVIDIA: &str = "nvidia";

impl Watch {
    /// Notes the identities of the drivers' files, before a process loads them.
    pub(super) fn of_drivers() -> Self {
        let files = manifests::files(&System::below(Path::new("/"))).into_iter();
        let drivers =
            files.flat_map(|(manifest, library)| [Some(manifest), library]).flatten().map(File::new);
        Self { drivers: drivers.collect(), socket: None, program: program(), events: None, is_wanted: false }
    }

    /// Watches the files of this family's drivers, and this socket file.
    pub(super) fn begin(&mut self, family: DriverFamily, socket: Option<&SocketFile>) {
        self.drivers.retain(|file| is_of(family, &file.path));
        self.socket = socket.map(File::known);
        self.is_wanted = true;
        match self.watch_folders() {
            Ok(events) => self.events = Some(events),
            Err(error) => log::warn!(
                "files of drivers are looked at only when a worker starts: {error}; raise fs.inotify.max_user_instances and fs.inotify.max_user_watches"
            ),
        }
    }

    /// Returns the descriptor to wait for.
    pub(super) fn awaited(&self) -> Option<&OwnedFd> {
        self.events.as_ref()
    }

    /// Returns the files that were replaced, each once.
    pub(super) fn look(&mut self) -> Vec<Replaced> {
        if let Some(events) = &self.events {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = Reader::new(events, &mut buffer);
            // The events' content does not matter: the look is at the files.
            while reader.next().is_ok() {}
        }
        if !self.is_wanted {
            return Vec::new();
        }
        let mut found = Vec::new();
        if let Some(file) = self.drivers.iter().find(|file| file.is_replaced()) {
            found.push(Replaced::Driver(file.path.clone()));
            self.drivers.clear();
        }
        if let Some(file) = self.socket.take_if(|file| file.is_replaced()) {
            found.push(Replaced::Socket(file.path));
        }
        if let Some(file) = self.program.take_if(|file| file.is_replaced()) {
            found.push(Replaced::Program(file.path));
        }
        found
    }

    fn watch_folders(&self) -> Result<OwnedFd, Errno> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let files = self.drivers.iter().chain(&self.socket).chain(&self.program);
        // Both the folder of a symbolic link and the folder of its target.
        let places =
            files.flat_map(|file| [Some(file.path.clone()), file.path.canonicalize().ok()]).flatten();
        let folders: BTreeSet<PathBuf> =
            places.filter_map(|path| path.parent().map(Path::to_owned)).collect();
        let changes = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        for folder in folders {
            match inotify::add_watch(&events, &folder, changes) {
                // The folder is gone, as a look at its files shows.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(events)
    }
}

impl File {
    fn new(path: PathBuf) -> Self {
        Self { was: identity(&path), path }
    }

    /// Returns the file of a socket, which another file may have replaced already.
    fn known(file: &SocketFile) -> Self {
        let (device, inode) = file.identity();
        let now = identity(file.path()).filter(|now| (now.0, now.1) == (device, inode));
        Self { path: file.path().to_owned(), was: now.or(Some((device, inode, 0, 0, 0))) }
    }

    fn is_replaced(&self) -> bool {
        identity(&self.path) != self.was
    }
}

/// Returns the path of the running program, and its identity. The file at that path may differ by now.
fn program() -> Option<File> {
    Some(File { path: program_path().ok()?, was: identity(Path::new(OWN)) })
}

fn identity(path: &Path) -> Option<Identity> {
    let file = path.metadata().ok()?;
    Some((file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
}

/// Returns whether a file may belong to a driver of this family, by its name. The software driver is Mesa's, too.
fn is_of(family: DriverFamily, path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match family {
        DriverFamily::Any => true,
        DriverFamily::Nvidia => name.contains(NVIDIA),
        DriverFamily::Software | DriverFamily::Mesa => !name.contains(NVIDIA),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn watched(folder: &Path) -> Watch {
        let files = ["lvp_icd.json", "nvidia_icd.json"].map(|name| {
            fs::write(folder.join(name), "1").unwrap();
            File::new(folder.join(name))
        });
        Watch { drivers: files.into(), socket: None, program: None, events: None, is_wanted: false }
    }

    #[test]
    fn what_replaces_a_file_is_seen_once_and_what_lies_beside_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (driver, socket) = (folder.path().join("lvp_icd.json"), folder.path().join("socket"));
        fs::write(&socket, "").unwrap();
        let mut watch = watched(folder.path());
        watch.begin(DriverFamily::Software, Some(&SocketFile::at(socket.clone()).unwrap()));
        fs::write(folder.path().join("beside"), "").unwrap();
        fs::write(folder.path().join("nvidia_icd.json"), "another").unwrap();
        assert_eq!(watch.look(), []);
        // The file is replaced as package managers do it.
        fs::write(folder.path().join("new"), "1").unwrap();
        fs::rename(folder.path().join("new"), &driver).unwrap();
        assert_eq!(watch.look(), [Replaced::Driver(driver)]);
        fs::remove_file(&socket).unwrap();
        assert_eq!(watch.look(), [Replaced::Socket(socket)]);
        assert_eq!(watch.look(), []);
    }

    #[test]
    fn a_socket_file_that_was_replaced_or_removed_before_it_is_watched_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        for is_there in [true, false] {
            fs::write(&socket, "").unwrap();
            let (device, inode) = SocketFile::at(socket.clone()).unwrap().identity();
            let made = SocketFile::known(socket.clone(), (device, inode + u64::from(is_there)));
            if !is_there {
                fs::remove_file(&socket).unwrap();
            }
            let mut watch = watched(folder.path());
            watch.begin(DriverFamily::Software, Some(&made));
            assert_eq!(watch.look(), [Replaced::Socket(socket.clone())]);
        }
    }

    #[test]
    fn a_program_that_takes_the_place_of_the_one_that_runs_is_seen_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = watched(folder.path());
        let own = program().unwrap();
        assert_eq!((&own.path, own.is_replaced()), (&std::env::current_exe().unwrap(), false));
        let path = folder.path().join("program");
        // The program is noticed as replaced even if another took its place before the first look.
        watch.program = Some(File { path: path.clone(), ..own });
        fs::write(&path, "another").unwrap();
        watch.begin(DriverFamily::Any, None);
        assert_eq!(watch.look(), [Replaced::Program(path)]);
        assert_eq!(watch.look(), []);
    }

    #[test]
    fn a_change_wakes_who_waits() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = watched(folder.path());
        assert!(watch.awaited().is_none());
        watch.begin(DriverFamily::Any, None);
        let events = watch.awaited().unwrap().try_clone().unwrap();
        let wakes = || {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let mut asked = [PollFd::new(&events, PollFlags::IN)];
            poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        };
        assert!(!wakes());
        fs::write(folder.path().join("lvp_icd.json"), "another").unwrap();
        assert!(wakes());
        assert_eq!(watch.look().len(), 1);
        assert!(!wakes(), "a change is reported twice");
    }
}
