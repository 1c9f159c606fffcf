//! Control groups of version 2 (kernel: `admin-guide/cgroup-v2.rst`). If the workers of a VM use up memory or threads, that VM alone lacks them.
//!
//! Below the group that the system *delegates* to the daemon lie `broker` and a group `vm-NAME` for each VM; a daemon of one VM has neither. Below a
//! VM's group lie `device` with the device process and its launcher, and `workers` with everything that a guest can make grow. Only `workers` is
//! limited, so no limit hits a process that serves others. A group that has groups below has no processes, because the kernel forbids that. This file
//! knows no VMs and no contexts: groups have names.

use clap::ValueEnum;
use doctor::control_groups::{self, Mount};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// `--cgroup`: whether the daemon divides the group that it was started in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum CgroupMode {
    /// The daemon divides the group if it is marked as delegated, as by systemd's `Delegate=`.
    #[default]
    Auto,
    /// The daemon divides the group, or does not start.
    On,
    /// The daemon leaves the group alone.
    Off,
}

/// A group that this process may divide, and has left for a group below.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Delegated {
    path: PathBuf,
    lacks: Vec<String>,
}

/// The limits of the workers of a VM; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLimits {
    /// Bytes of memory (`memory.max`).
    pub memory: Option<u64>,
    /// Processes and threads (`pids.max`).
    pub tasks: Option<u64>,
}

/// The controllers that set limits.
const CONTROLLERS: &[&str] = &["memory", "pids", "cpu"];
/// The extended attributes that mark groups which may be divided: systemd sets the first for every user, older versions the second for root.
const MARKS: &[&str] = &["user.delegate", "trusted.delegate"];
/// The group below a VM's group that holds its device process and launcher.
pub const DEVICE: &str = "device";
const WORKERS: &str = "workers";
/// The part of the memory, one of this many, that is kept for the broker and device processes.
const MEMORY_RESERVE: u64 = 16;
/// Processes and threads that are kept for the broker and for each VM's device process and launcher.
const TASKS_RESERVE: u64 = 16;
/// Processes and threads of a VM's workers if no option sets it.
const TASKS: u64 = 16_384;

impl GroupLimits {
    /// Returns these limits, and those of `others` where these have none.
    #[must_use]
    pub fn or(self, others: &Self) -> Self {
        Self { memory: self.memory.or(others.memory), tasks: self.tasks.or(others.tasks) }
    }
}

impl Delegated {
    /// Does the same as [`Self::claim`]; if there is no group, logs that once, with advice.
    ///
    /// # Errors
    ///
    /// There is no group, though the options require one.
    pub fn claim_or_say(mode: CgroupMode, leaf: &str) -> io::Result<Option<Self>> {
        match (Self::claim(mode, leaf), mode) {
            (Ok(delegated), _) => {
                let (group, lacks) = (delegated.path.display(), delegated.lacks.join(", "));
                match lacks.is_empty() {
                    true => log::info!("workers are limited in control groups below {group}"),
                    false => log::warn!(
                        "{group} lacks the controllers {lacks}: workers have no limits of these kinds; Delegate=yes in the unit gives them"
                    ),
                }
                Ok(Some(delegated))
            }
            (Err(_), CgroupMode::Off) => Ok(None),
            (Err(why), CgroupMode::On) => Err(io::Error::other(format!("--cgroup=on: {why}"))),
            (Err(why), CgroupMode::Auto) => {
                log::info!(
                    "no control groups ({why}): workers of all VMs share what this process may have; Delegate=yes in its unit, or \
                     --cgroup=on in a group of its own, gives each VM its part"
                );
                Ok(None)
            }
        }
    }

    /// Finds the group that this process may divide, and moves the process, which must be alone there, into `leaf` below.
    ///
    /// # Errors
    ///
    /// The reason why there is no such group, and a remedy.
    pub fn claim(mode: CgroupMode, leaf: &str) -> Result<Self, String> {
        if mode == CgroupMode::Off {
            return Err("--cgroup=off".into());
        }
        let own = own_group().map_err(|error| error.to_string())?;
        let path = Self::to_divide(own, mode)?;
        Self::divide(path, leaf).map_err(|error| error.to_string())
    }

    /// Returns the group that a process in `own` may divide.
    fn to_divide(own: PathBuf, mode: CgroupMode) -> Result<PathBuf, String> {
        let around = own.parent().filter(|parent| is_marked(parent) && has_one_group(parent));
        match (around, mode) {
            _ if is_marked(&own) => Ok(own),
            // Systemd has started the process in a group of its own (DelegateSubgroup=).
            (Some(parent), _) => Ok(parent.to_owned()),
            (None, CgroupMode::On) => Ok(own),
            (None, _) => Err(format!("{} is not delegated", own.display())),
        }
    }

    fn divide(path: PathBuf, leaf: &str) -> io::Result<Self> {
        if !path.join("cgroup.type").exists() {
            return Err(io::Error::other("the root of all groups cannot be delegated"));
        }
        let number = std::process::id().to_string();
        let listed = read(&path, "cgroup.procs")?;
        if let Some(other) = listed.split_whitespace().find(|process| *process != number) {
            return Err(io::Error::other(format!("process {other} is in {}, too", path.display())));
        }
        enter(&make(&path, leaf)?)?;
        let lacks = pass_on_controllers(&path)?;
        if lacks.len() == CONTROLLERS.len() {
            return Err(io::Error::other(format!("{} has no controllers", path.display())));
        }
        // All other processes wait for this process's decisions; this is the largest weight.
        let _ = write(&path.join(leaf), "cpu.weight", 10_000);
        Ok(Self { path, lacks })
    }

    /// Returns the group's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the controllers that were not delegated, which therefore limit nothing.
    pub fn lacks(&self) -> &[String] {
        &self.lacks
    }

    /// Returns the limits of all groups below together: the least of this group's limits and those of the groups above.
    pub fn available(&self) -> GroupLimits {
        let least = |name: &str| {
            let levels = self.path.ancestors();
            levels.filter_map(|group| read(group, name).ok()?.trim().parse::<u64>().ok()).min()
        };
        GroupLimits { memory: least("memory.max"), tasks: least("pids.max") }
    }

    /// Returns the limits of each VM without own limits, given the own limits of all VMs: an equal part of the available amounts, less a reserve for
    /// the processes that serve the VMs, and at most seven eighths of the machine's memory.
    pub fn part_of_each(&self, own: &[GroupLimits]) -> GroupLimits {
        let GroupLimits { memory, tasks } = self.available();
        let memory = part(memory.map(|all| all - all / MEMORY_RESERVE), own.iter().map(|own| own.memory));
        let reserve = TASKS_RESERVE * (own.len() as u64 + 1);
        let tasks = part(tasks.map(|all| all.saturating_sub(reserve)), own.iter().map(|own| own.tasks));
        let machine = rustix::system::sysinfo();
        let machine = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit)) / 8 * 7;
        GroupLimits {
            memory: Some(memory.map_or(machine, |part| part.min(machine))),
            tasks: Some(tasks.map_or(TASKS, |part| part.min(TASKS))),
        }
    }

    /// Returns the group of a VM, and makes it if it does not exist.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn group(&self, name: &str) -> io::Result<PathBuf> {
        make(&self.path, name)
    }

    /// Removes a group and the groups in it, if no process is left there. Returns whether the group is gone.
    pub fn remove(&self, name: &str) -> bool {
        let group = self.path.join(name);
        for folder in [group.join(DEVICE), group.join(WORKERS), group] {
            let _ = fs::remove_dir(folder);
        }
        !self.path.join(name).exists()
    }
}

/// Returns the part of `all` for each VM that has no limit of its own. The part is at least 1, because the kernel reports too small a limit better
/// than a refusal here would.
fn part(all: Option<u64>, own: impl Iterator<Item = Option<u64>> + Clone) -> Option<u64> {
    let left = own.clone().flatten().fold(all?, u64::saturating_sub);
    let without = own.filter(Option::is_none).count() as u64;
    Some(left.checked_div(without).unwrap_or(0).max(1))
}

/// Sets the weight of a group's processor time against other groups, 1 to 10000.
///
/// # Errors
///
/// The system refuses, as when the controller was not delegated.
pub fn set_weight(group: &Path, weight: u32) -> io::Result<()> {
    write(group, "cpu.weight", weight)
}

/// Moves this process, which has started no other, into the `device` group of a VM, and makes and returns its group of workers. If the
/// process `follows` another, whose workers may be in the group, no limit of the group is lowered.
///
/// # Errors
///
/// The system refuses.
pub fn enter_vm(group: &Path, limits: &GroupLimits, follows: bool) -> io::Result<PathBuf> {
    let keeps = follows && group.join(WORKERS).exists();
    let (device, workers) = (make(group, DEVICE)?, make(group, WORKERS)?);
    enter(&device)?;
    let lacks = pass_on_controllers(group)?;
    for (controller, file, limit) in
        [("memory", "memory.max", limits.memory), ("pids", "pids.max", limits.tasks)]
    {
        if !lacks.iter().any(|lacking| lacking == controller) {
            let least = if keeps { limit_in(&workers, file)? } else { 0 };
            match limit.unwrap_or(u64::MAX).max(least) {
                u64::MAX => write(&workers, file, "max")?,
                limit => write(&workers, file, limit)?,
            }
        }
    }
    Ok(workers)
}

/// Returns the limit in a file of a group; [`u64::MAX`] means none.
fn limit_in(group: &Path, file: &str) -> io::Result<u64> {
    Ok(read(group, file)?.trim().parse().unwrap_or(u64::MAX))
}

/// The group of a VM's workers, as the launcher holds it.
#[derive(Debug)]
pub struct WorkerGroup {
    processes: File,
    events: Option<File>,
    /// The number of kills for lack of memory that were reported.
    told: u64,
}

impl WorkerGroup {
    /// Opens the group.
    ///
    /// # Errors
    ///
    /// The group does not exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        let processes = File::options().write(true).open(path.join("cgroup.procs"))?;
        let mut group = Self { processes, events: File::open(path.join("memory.events")).ok(), told: 0 };
        group.told = group.killed();
        Ok(group)
    }

    /// Moves the calling process, which has one thread, into the group.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn enter(&self) -> io::Result<()> {
        (&self.processes).write_all(b"0")
    }

    /// Returns whether a killed process of the group was killed for lack of memory. Each such kill is reported once.
    pub fn explains_a_kill(&mut self) -> bool {
        let explains = self.killed() > self.told;
        self.told += u64::from(explains);
        explains
    }

    fn killed(&self) -> u64 {
        let mut text = [0; 1024];
        let count = self.events.as_ref().and_then(|events| events.read_at(&mut text, 0).ok()).unwrap_or(0);
        kills(&String::from_utf8_lossy(&text[..count]))
    }
}

/// Returns the count of `oom_kill` in a file of events.
fn kills(events: &str) -> u64 {
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

/// Makes the kernel kill this process, and those that it starts, first when memory runs out: a worker is one guest's program, and processes that serve
/// others are spared. Any process may raise this number.
///
/// # Errors
///
/// The system refuses.
pub(super) fn go_first() -> io::Result<()> {
    const FILE: &str = "/proc/self/oom_score_adj";
    let refused = |error: io::Error| io::Error::other(format!("{FILE}: {error}"));
    let own: i32 = fs::read_to_string(FILE).map_err(refused)?.trim().parse().map_err(io::Error::other)?;
    fs::write(FILE, (own + GO_FIRST).min(1000).to_string()).map_err(refused)
}

/// The amount added to `oom_score_adj`: a worker counts as if it also held half of the machine's memory.
const GO_FIRST: i32 = 500;

/// Returns the folder of this process' group.
fn own_group() -> io::Result<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let own = control_groups::group(&groups);
    let found = own.and_then(|own| Mount::of(own, &mounts)?.folder_of(own));
    found.ok_or_else(|| io::Error::other("cgroup v2 is not mounted, or does not show this process' group"))
}

fn is_marked(group: &Path) -> bool {
    MARKS.iter().any(|mark| {
        let mut value = [0; 8];
        let count = rustix::fs::getxattr(group, *mark, &mut value[..]).unwrap_or(0);
        value[..count].starts_with(b"1")
    })
}

/// Returns whether a group has one group below, as a service manager makes it. Another group may belong to a process that divides it.
fn has_one_group(parent: &Path) -> bool {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).count() == 1
}

fn make(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let path = parent.join(name);
    match fs::create_dir(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(&path, &error)),
        Ok(()) | Err(_) => Ok(path),
    }
}

fn enter(group: &Path) -> io::Result<()> {
    write(group, "cgroup.procs", std::process::id())
}

/// Lets groups below this one have limits; returns the controllers that are missing.
fn pass_on_controllers(group: &Path) -> io::Result<Vec<String>> {
    let present = read(group, "cgroup.controllers")?;
    let mut lacks = Vec::new();
    for controller in CONTROLLERS {
        if present.split_whitespace().any(|name| name == *controller) {
            write(group, "cgroup.subtree_control", format_args!("+{controller}"))?;
        } else {
            lacks.push((*controller).to_owned());
        }
    }
    Ok(lacks)
}

fn read(group: &Path, name: &str) -> io::Result<String> {
    let path = group.join(name);
    fs::read_to_string(&path).map_err(|error| failed(&path, &error))
}

fn write(group: &Path, name: &str, value: impl Display) -> io::Result<()> {
    let path = group.join(name);
    // Opened and never created: a missing file is no file of a group.
    let file = File::options().write(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(value.to_string().as_bytes()));
    written.map_err(|error| failed(&path, &error))
}

fn failed(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_limit_gets_an_equal_part_of_what_is_left() {
        let own = |limits: &'static [Option<u64>]| limits.iter().copied();
        assert_eq!(part(None, own(&[None, Some(3)])), None);
        assert_eq!(part(Some(90), own(&[None, Some(30), None])), Some(30));
        assert_eq!(part(Some(90), own(&[None])), Some(90));
        assert_eq!(part(Some(90), own(&[None, Some(100)])), Some(1));
        assert_eq!(part(Some(90), own(&[Some(10)])), Some(1));
    }

    #[test]
    fn kills_are_counted_and_not_what_led_to_them() {
        assert_eq!(kills("low 0\nhigh 1\nmax 99\noom 7\noom_kill 3\noom_group_kill 0\n"), 3);
        assert_eq!(kills(""), 0);
    }

    #[test]
    fn a_process_that_follows_another_lowers_no_limit_of_its_workers() {
        let group = tempfile::tempdir().unwrap();
        let made = |file: &str, text: &str| fs::write(group.path().join(file), text).unwrap();
        fs::create_dir(group.path().join(DEVICE)).unwrap();
        fs::create_dir(group.path().join(WORKERS)).unwrap();
        made("cgroup.controllers", "memory pids\n");
        ["cgroup.subtree_control", "device/cgroup.procs"].iter().for_each(|file| made(file, ""));
        let after = |before: &str, memory, follows| {
            made("workers/memory.max", before);
            made("workers/pids.max", "7\n");
            let workers = enter_vm(group.path(), &GroupLimits { memory, tasks: Some(9) }, follows).unwrap();
            assert_eq!(limit_in(&workers, "pids.max").unwrap(), 9);
            limit_in(&workers, "memory.max").unwrap()
        };
        // The values are equally long, because an ordinary file keeps the bytes behind a write.
        assert_eq!(after("200", Some(100), true), 200);
        assert_eq!(after("200", Some(300), true), 300);
        assert_eq!(after("max", Some(300), true), u64::MAX);
        assert_eq!(after("200", None, true), u64::MAX);
        assert_eq!(after("200", Some(100), false), 100);
    }

    #[test]
    fn nothing_is_divided_unless_it_is_delegated() {
        assert!(Delegated::claim(CgroupMode::Off, "broker").unwrap_err().contains("off"));
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        fs::create_dir(&own).unwrap();
        assert!(Delegated::to_divide(own.clone(), CgroupMode::Auto).unwrap_err().contains("not delegated"));
        assert_eq!(Delegated::to_divide(own.clone(), CgroupMode::On), Ok(own.clone()));
        fs::remove_dir(own).unwrap();
        assert!(Delegated::divide(folder.path().to_owned(), "broker").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
    }
}
