//! This file keeps the state that outlives a daemon, in the folder its operator names: the key that authenticates pipeline caches in guests' files.
//!
//! The file knows nothing of pipeline caches. A user that reads the key can make data that host drivers trust, so only the key's owner can
//! read it, and it is never logged.

use config::CacheKey;
use rustix::fs::{AtFlags, Mode, OFlags, linkat, open, openat, unlinkat};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

const KEY_FILE: &str = "pipeline-cache.key";
/// The length of the key in bytes.
const KEY_BYTES: u64 = 32;

/// Returns the key of an earlier daemon with the same folder, or else a fresh key, which it stores there for later daemons. Without a folder, or if
/// the folder's disk has no room, each daemon has its own key. A folder that does not exist is made for this user only, if its parent exists.
///
/// # Errors
///
/// The folder cannot be made or used, or holds a file under the key's name that is no key.
pub fn cache_key(folder: Option<&Path>) -> io::Result<CacheKey> {
    let Some(folder) = folder else { return fresh_key() };
    match key_in(folder) {
        // A VM with a GPU and without caches is better than a VM without a GPU.
        Err(error) if is_without_room(&error) => {
            log::warn!(
                "{}: {error}: guests lose their pipeline caches when this process ends; make room there and start it again",
                folder.display()
            );
            fresh_key()
        }
        found => found,
    }
}

/// Returns whether a disk, or the part of it that a user may have, is full.
fn is_without_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn key_in(folder: &Path) -> io::Result<CacheKey> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // The folder is opened once: another folder that replaces it later changes nothing.
    let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    match read_key(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    // The key is written aside and linked: a process that sees the name sees the whole key, and of several daemons that start at once one wins.
    let aside = format!("{KEY_FILE}.{}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(openat(&folder, &aside, flags, Mode::RUSR | Mode::WUSR)?);
    // No partial file is left behind if there is no room.
    let linked = file.write_all(&fresh_key()?.0).and_then(|()| file.sync_all()).and_then(|()| {
        match linkat(&folder, &aside, &folder, KEY_FILE, AtFlags::empty()) {
            Err(error) if error != Errno::EXIST => Err(error.into()),
            _ => Ok(()),
        }
    });
    unlinkat(&folder, &aside, AtFlags::empty())?;
    linked?;
    read_key(&folder)
}

fn read_key(folder: impl AsFd) -> io::Result<CacheKey> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("not a key of {KEY_BYTES} bytes"));
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{KEY_FILE}: {error}"));
    let bytes = outside::read_in(folder, KEY_FILE, KEY_BYTES).map_err(|error| named(error.into()))?;
    Ok(CacheKey(bytes.try_into().map_err(|_| named(wrong()))?))
}

fn fresh_key() -> io::Result<CacheKey> {
    let mut key = [0; 32];
    // The kernel fills up to 256 bytes at once or not at all.
    getrandom(&mut key, GetRandomFlags::empty())?;
    Ok(CacheKey(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, mknodat};
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn key_survives_in_its_folder_and_is_readable_for_its_owner_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = cache_key(Some(folder.path())).expect("a key");
        assert!(cache_key(Some(folder.path())).expect("the same key") == key);
        assert!(cache_key(None).expect("another key") != key);
        let mode = fs::metadata(folder.path().join(KEY_FILE)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_folder_is_made_for_its_owner_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let made = folder.path().join("made");
        let key = cache_key(Some(&made)).expect("a key");
        assert_eq!(fs::metadata(&made).expect("a folder").permissions().mode() & 0o777, 0o700);
        assert!(cache_key(Some(&made)).expect("the same key") == key);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(cache_key(Some(&folder.path().join("missing/deep"))).is_err());
        fs::write(folder.path().join(KEY_FILE), b"short").expect("writable");
        assert!(cache_key(Some(folder.path())).is_err());
    }

    #[test]
    fn a_key_that_is_a_link_or_a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let (key, other) = (folder.path().join(KEY_FILE), folder.path().join("other"));
        fs::write(&other, [7; 32]).expect("writable");
        symlink(&other, &key).expect("a link");
        assert!(cache_key(Some(folder.path())).is_err());
        fs::remove_file(&key).expect("removable");
        mknodat(CWD, &key, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        let error = cache_key(Some(folder.path())).expect_err("a pipe has no key").to_string();
        assert!(error.starts_with("pipeline-cache.key: is no regular file; "), "{error}");
    }

    #[test]
    fn a_full_disk_costs_the_caches_and_nothing_else() {
        for error in [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT] {
            assert!(is_without_room(&error.into()));
        }
        assert!(!is_without_room(&rustix::io::Errno::ACCESS.into()));
    }

    #[test]
    fn key_is_not_shown() {
        assert_eq!(format!("{:?}", CacheKey([0x5a; 32])), "CacheKey(..)");
    }
}
