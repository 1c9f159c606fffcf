//! The steps of a fresh process into isolation: namespaces of its own, a root of its own, a user without rights.
//!
//! With the right to administrate the system, the process sets up everything before it becomes the user nobody. It can then show files that only root
//! may look up. Without this right, a user namespace comes first and gives the right to the rest; the process stays the user that it was.

use super::policy::{Use, View};
use super::{root, seal, sys};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{DumpableBehavior, Gid, Uid, getgid, getuid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, set_capabilities};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

/// The user and group `nobody`, in the kernel as in every distribution's list of users.
const NOBODY: u32 = 65534;

/// The parts of isolation that are to be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Isolation {
    /// New namespaces.
    pub namespaces: UnshareFlags,
    /// A root of its own; needs a mount namespace.
    pub root: bool,
    /// The launcher may administrate the system.
    privileged: bool,
    /// The user that the child becomes.
    user: Uid,
    group: Gid,
}

/// The parts, in words, and the flags that each adds.
pub(super) const PARTS: &[(&str, UnshareFlags)] = &[
    ("user namespace", UnshareFlags::NEWUSER),
    ("mount namespace and root of its own", UnshareFlags::NEWNS),
    ("process namespace", UnshareFlags::NEWPID),
    ("network namespace", UnshareFlags::NEWNET),
    ("IPC namespace", UnshareFlags::NEWIPC),
    ("host name namespace", UnshareFlags::NEWUTS),
    ("control group namespace", UnshareFlags::NEWCGROUP),
];

impl Isolation {
    /// Returns an isolation without parts.
    pub(super) fn none() -> Self {
        let privileged =
            capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
        let (user, group) = (getuid(), getgid());
        Self { namespaces: UnshareFlags::empty(), root: false, privileged, user, group }
    }

    /// Adds a part.
    #[must_use]
    pub(super) fn with(mut self, part: UnshareFlags) -> Self {
        self.namespaces |= part;
        self.root |= part.contains(UnshareFlags::NEWNS);
        self
    }

    /// Returns the namespaces that a process must be born into.
    pub(super) fn at_birth(&self) -> UnshareFlags {
        let born = UnshareFlags::NEWPID;
        self.namespaces & if self.privileged { born } else { born | UnshareFlags::NEWUSER }
    }

    /// Enters the other parts. The calling process was born into [`Self::at_birth`], has one thread, and returns without any
    /// capability.
    ///
    /// # Errors
    ///
    /// The system refuses; the message names the step.
    pub(super) fn enter(&self, view: &View) -> io::Result<()> {
        // Opened first, because no path leads there from the new root.
        let itself =
            openat(CWD, "/proc/self", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        if !self.privileged && self.namespaces.contains(UnshareFlags::NEWUSER) {
            map_identity(&itself, self.user, self.group)?;
        }
        let later = self.namespaces & !self.at_birth() & !UnshareFlags::NEWUSER;
        sys::unshare(later)?;
        if later.contains(UnshareFlags::NEWUTS) {
            rustix::system::sethostname(b"worker")?;
        }
        if self.root {
            root::enter(view, self.namespaces.contains(UnshareFlags::NEWPID))?;
        }
        if self.privileged {
            become_nobody(view)?;
            if self.namespaces.contains(UnshareFlags::NEWUSER) {
                sys::unshare(UnshareFlags::NEWUSER)?;
                map_identity(&itself, Uid::from_raw(NOBODY), Gid::from_raw(NOBODY))?;
            }
        }
        seal::drop_capabilities()
    }
}

/// Becomes a user that owns nothing, but keeps the groups that own device nodes of the view. Keeps capabilities, too, for the next step.
fn become_nobody(view: &View) -> io::Result<()> {
    let devices = view.shown.iter().filter(|part| part.used == Use::Device);
    let closed =
        devices.filter_map(|part| part.path.metadata().ok()).filter(|node| node.mode() & 0o006 != 0o006);
    let groups: BTreeSet<u32> = closed.map(|node| node.gid()).filter(|group| *group != 0).collect();
    let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
    rustix::thread::set_thread_groups(&groups)?;
    rustix::thread::set_keep_capabilities(true)?;
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    let mut sets = capabilities(None)?;
    sets.effective = sets.permitted;
    Ok(set_capabilities(None, sets)?)
}

/// Maps one user and one group into the user namespace of the process, under their own numbers. `itself` is the folder of the process in
/// `/proc`.
fn map_identity(itself: &OwnedFd, user: Uid, group: Gid) -> io::Result<()> {
    // The process owns its files in /proc only if it is dumpable.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let write = |name: &str, text: String| -> io::Result<()> {
        let file = openat(itself, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, text.as_bytes())
            .map_err(|error| io::Error::other(format!("{name}: {error}")))?;
        Ok(())
    };
    write("setgroups", "deny".into())?;
    write("uid_map", format!("{user} {user} 1"))?;
    write("gid_map", format!("{group} {group} 1"))
}
