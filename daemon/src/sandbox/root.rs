//! The file system of a child: a root that holds only the files that its policy shows, at the places where the host has them. All of it is read-only,
//! and nothing of the host's own root is left in the namespace.

use super::policy::{Shown, Use, View};
use super::sys;
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change,
    mount_move, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, chroot, pivot_root, umask};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Any folder that every system has: the new root lies on it for a moment.
const PLACES: &[&str] = &["/tmp", "/run", "/var", "/proc", "/etc"];

/// Enters a new root. The process is alone in its mount namespace, and may mount there; `own_processes` says that it is in a process
/// namespace of its own, too.
///
/// # Errors
///
/// The system refuses; the message names the step.
pub(super) fn enter(view: &View, own_processes: bool) -> io::Result<()> {
    let refused = |what: &str, error: &dyn Display| io::Error::other(format!("{what}: {error}"));
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|error| refused("mounts cannot be made private", &error))?;
    // Taken before the new root hides any of them.
    let trees = view.shown.iter().map(|part| Ok((part, take(part)?))).collect::<io::Result<Vec<_>>>()?;
    let place = PLACES.iter().find(|place| Path::new(place).is_dir()).ok_or(io::ErrorKind::NotFound)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", *place, "tmpfs", flags, Some(c"size=1m,nr_inodes=4096,mode=755"))
        .map_err(|error| refused("no new root", &error))?;
    chdir(*place)?;
    umask(rustix::fs::Mode::empty());
    for (part, tree) in trees {
        attach(part, &tree).map_err(|error| refused(&part.path.display().to_string(), &error))?;
    }
    for (link, target) in &view.links {
        let link = relative(link);
        std::fs::create_dir_all(link.parent().unwrap_or(Path::new(".")))?;
        std::os::unix::fs::symlink(target, link)?;
    }
    if view.procfs && own_processes {
        show_itself()?;
    }
    become_root().map_err(|error| refused("the new root cannot be entered", &error))?;
    let root = rustix::fs::open("/", rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC, 0.into())?;
    sys::set_mount_attributes(root.as_fd(), libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID)
}

/// Returns a detached, read-only copy of a part of the host's file system.
fn take(part: &Shown) -> io::Result<OwnedFd> {
    let refused =
        |error: &dyn Display| io::Error::other(format!("{} cannot be shown: {error}", part.path.display()));
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, &part.path, flags).map_err(|error| refused(&error))?;
    let denied = match part.used {
        Use::Library => libc::MOUNT_ATTR_NODEV,
        Use::File => libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC,
        Use::Device => libc::MOUNT_ATTR_NOEXEC,
    };
    sys::set_mount_attributes(tree.as_fd(), denied | libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID)
        .map_err(|error| refused(&error))?;
    Ok(tree)
}

fn attach(part: &Shown, tree: &OwnedFd) -> io::Result<()> {
    let place = relative(&part.path);
    if rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(tree)?.st_mode).is_dir() {
        std::fs::create_dir_all(&place)?;
    } else if !place.exists() {
        std::fs::create_dir_all(place.parent().unwrap_or(Path::new(".")))?;
        std::fs::File::create(&place)?;
    }
    Ok(move_mount(tree, "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Shows only the part of `/proc` about the process itself, while other parts of `/proc` may be shown at their places. A system whose own
/// `/proc` is partly covered does not allow this mount; drivers go on without it.
fn show_itself() -> io::Result<()> {
    std::fs::create_dir_all("proc")?;
    std::fs::create_dir(ITSELF)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if mount("proc", ITSELF, "proc", flags, Some(c"subset=pid,hidepid=invisible")).is_ok() {
        for name in ["self", "thread-self"] {
            std::os::unix::fs::symlink(Path::new("/").join(ITSELF).join(name), Path::new("proc").join(name))?;
        }
    }
    Ok(())
}

/// The folder where the process's own part of `/proc` is mounted.
const ITSELF: &str = ".process";

/// Makes the current folder the root, and releases the old root.
fn become_root() -> io::Result<()> {
    match pivot_root(".", ".") {
        Ok(()) => {
            // Both roots lie at the same place now, the old one on top.
            unmount(".", UnmountFlags::DETACH)?;
        }
        // The root of an initramfs cannot be moved away. It stays below, and no path leads there without the right to change roots.
        Err(rustix::io::Errno::INVAL) => {
            mount_move(".", "/")?;
            chroot(".")?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(chdir("/")?)
}

fn relative(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}
