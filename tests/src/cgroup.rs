//! A control group (version 2) of a test's own, as a service manager makes one for a unit: with limits, and for the daemon to divide.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::daemon::eventually;
use crate::daemon_process::prepared;
use crate::guest::PATIENCE;

/// A group. When it is dropped its processes are killed and it is removed.
pub struct Unit {
    path: PathBuf,
}

impl Unit {
    /// Makes the group, if this machine has those controllers in version 2; otherwise prints that the caller is skipped.
    ///
    /// # Errors
    /// The system refuses the group though it has the controllers.
    pub fn with(controllers: &[&str]) -> Result<Option<Self>> {
        let lacks = |why: &str| {
            println!("skipped: no control groups of version 2 with {controllers:?} here: {why}");
            eprintln!("skipped: no control groups of version 2 with {controllers:?} here: {why}");
            Ok(None)
        };
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let Some(root) = mounted(&mounts) else { return lacks("not mounted") };
        let root = Path::new(root);
        let present = fs::read_to_string(root.join("cgroup.controllers"))?;
        if let Some(lacking) =
            controllers.iter().find(|wanted| !present.split_whitespace().any(|name| name == **wanted))
        {
            return lacks(lacking);
        }
        for controller in present.split_whitespace().filter(|name| ["memory", "pids", "cpu"].contains(name)) {
            if fs::write(root.join("cgroup.subtree_control"), format!("+{controller}")).is_err() {
                return lacks("the root group cannot be changed");
            }
        }
        let mut number = std::process::id();
        let path = loop {
            let path = root.join(format!("vhost-user-vulkan-test-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => break path,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 100_000,
                Err(error) => return Err(error).context("cannot make a group"),
            }
        };
        Ok(Some(Self { path }))
    }

    /// The path of a file or a group in this group.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Sets one of the group's files.
    ///
    /// # Errors
    /// The system refuses the value.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        fs::write(self.path(name), value).with_context(|| format!("{name} = {value}"))
    }

    /// Returns the contents of one of the group's files.
    ///
    /// # Errors
    /// There is no such file.
    pub fn read(&self, name: &str) -> Result<String> {
        Ok(fs::read_to_string(self.path(name)).with_context(|| name.to_owned())?.trim().to_owned())
    }

    /// The processes of a group in this one.
    ///
    /// # Errors
    /// There is no such group.
    pub fn processes(&self, name: &str) -> Result<Vec<i32>> {
        let listed = self.read(&format!("{name}/cgroup.procs"))?;
        Ok(listed.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    }

    /// Returns the same command, in the group from its first moment.
    #[must_use]
    pub fn command(&self, command: &Command) -> Command {
        prepared(&format!("echo $$ >{}", self.path("cgroup.procs").display()), command)
    }

    /// Waits until a group in this one no longer exists.
    ///
    /// # Errors
    /// The group stays.
    pub fn ensure_gone(&self, name: &str) -> Result<()> {
        ensure!(eventually(PATIENCE, || !self.path(name).exists()), "{name} is left");
        Ok(())
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _ = fs::write(self.path("cgroup.kill"), "1");
        eventually(Duration::from_secs(30), || remove(&self.path));
    }
}

/// The folder where all groups are mounted: the system's own, not that in the folder of a chroot.
fn mounted(mounts: &str) -> Option<&str> {
    let of_two = mounts.lines().filter(|mount| mount.contains(" - cgroup2 "));
    let folders = of_two.filter_map(|mount| {
        let mut fields = mount.split(' ').skip(3);
        (fields.next()? == "/").then(|| fields.next())?
    });
    folders.min_by_key(|folder| !Path::new(folder).starts_with("/sys/fs/cgroup"))
}

/// Removes a group with all below it.
fn remove(group: &Path) -> bool {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        }
    }
    fs::remove_dir(group).is_ok() || !group.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chroots_groups_are_not_taken_for_the_systems() {
        let system = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let second = "91 90 0:38 / /srv/build/sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let part = "92 90 0:38 /pod /sys/fs/cgroup/pod rw - cgroup2 cgroup2 rw";
        for mounts in [[system, second, part], [part, second, system]] {
            assert_eq!(mounted(&mounts.join("\n")), Some("/sys/fs/cgroup/unified"));
        }
        assert_eq!(mounted("36 31 0:33 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids"), None);
    }
}
