//! A Debian in which systemd runs, as the first process of namespaces of its own: for tests of units, and of programs that systemd starts.
//!
//! It has a network of its own that leads nowhere, a control group of its own, and none of this machine's devices but those that any program
//! has. It is no virtual machine: its kernel is this machine's, so that what its programs emulate is emulated once.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::daemon::eventually;
use crate::packages::Installed;
use crate::program::{LIMIT, Program};

/// Makes the system's folders and devices, and becomes its first process. `$1` is the archive, `$2` the folder for the copy, and `$3` the
/// folder that the system finds at `/mnt`.
const BOOT: &str = r#"
set -e
tar --extract --file "$1" --directory "$2" --exclude='./dev/*' --warning=no-timestamp
hostname host
mount --bind "$2" "$2"
cd "$2"
mount -t tmpfs -o mode=755 dev dev
mkdir dev/pts dev/shm
for name in null zero full random urandom tty; do touch "dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
for name in dev/shm run tmp; do mount -t tmpfs -o mode=1777 none "$name"; done
chmod 755 run
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --bind "$3" mnt
mkdir -p outside
pivot_root . outside
umount -l /outside
exec env -i container=namespaces /usr/lib/systemd/systemd --system
"#;

/// Puts the process that reads it into the control group `$0` and runs the rest of its arguments.
const IN_GROUP: &str = r#"echo 0 >"$0/cgroup.procs" && exec "$@""#;

/// The environment of scripts.
const ENVIRONMENT: [&str; 4] =
    ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"];

/// The time between two looks at something that is awaited.
const PAUSE: Duration = Duration::from_millis(200);

/// A running system. Dropping it ends all its processes.
pub struct Booted {
    /// `unshare`, which ends the system's first process when it ends.
    outer: Child,
    /// The system's first process.
    init: String,
    group: PathBuf,
    copy: TempDir,
}

impl Booted {
    /// Says why this machine cannot have such a system, if it cannot.
    #[must_use]
    pub fn obstacle() -> Option<&'static str> {
        if !rustix::process::geteuid().is_root() {
            return Some("systemd in namespaces needs root");
        }
        if control_groups().is_none() {
            return Some("no control groups of version 2 are mounted");
        }
        Installed::obstacle()
    }

    /// Starts a copy of a system that has systemd, in which `shown` is `/mnt`. Returns when its services have started.
    ///
    /// # Errors
    /// A part of the system cannot be made, or it does not come up.
    pub fn boot(system: &Installed, shown: &Path) -> Result<Self> {
        let copy = system.folder_for_copy()?;
        let groups = control_groups().context("no control groups of version 2 are mounted")?;
        let name = copy.path().file_name().context("a folder has a name")?.to_string_lossy().into_owned();
        let group = groups.join(format!("vhost-user-vulkan-test{name}"));
        fs::create_dir(&group).context("cannot make a control group")?;
        let log = File::create(copy.path().with_extension("log"))?;
        let mut command = Command::new("sh");
        command.args(["-c", IN_GROUP]).arg(&group);
        command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--cgroup"]);
        command.args(["--net", "--propagation", "private", "sh", "-c", BOOT, "sh"]);
        command.arg(system.archive()).arg(copy.path()).arg(shown);
        let started = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        let outer = started.context("cannot run unshare")?;
        let mut booted = Self { outer, init: String::new(), group, copy };
        booted.await_services()?;
        Ok(booted)
    }

    /// Runs a script of the shell as the system's root, and returns what it printed.
    ///
    /// # Errors
    /// A command of the script fails; the message has what it printed.
    pub fn run(&self, script: &str) -> Result<String> {
        let output = self.output(script)?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(output.status.success(), "{script}\n{}: {said}", output.status);
        Ok(said)
    }

    /// Runs a script of the shell as the system's root, to whatever end.
    ///
    /// # Errors
    /// It cannot be started, or takes too long.
    pub fn output(&self, script: &str) -> Result<Output> {
        let mut command = Command::new("nsenter");
        command.args([
            "--target", &self.init, "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root",
            "--wd",
        ]);
        command.args(["env", "-i"]).args(ENVIRONMENT).args(["sh", "-ec", script]);
        Program::start(command)?.wait(LIMIT)
    }

    /// Waits until a script succeeds.
    ///
    /// # Errors
    /// It does not within `limit`; the message has what it printed at last.
    pub fn wait_for(&self, script: &str, limit: Duration) -> Result<String> {
        let mut last = String::new();
        let succeeds = || match self.run(script) {
            Ok(text) => {
                last = text;
                true
            }
            Err(error) => {
                last = format!("{error:#}");
                thread::sleep(PAUSE);
                false
            }
        };
        ensure!(eventually(limit, succeeds), "{last}");
        Ok(last)
    }

    fn await_services(&mut self) -> Result<()> {
        let log = self.copy.path().with_extension("log");
        let said = || fs::read_to_string(&log).unwrap_or_default();
        let pid = self.outer.id();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let first = || fs::read_to_string(&children).ok().filter(|list| !list.trim().is_empty());
        ensure!(eventually(LIMIT, || first().is_some()), "no first process: {}", said());
        first().context("it has just been there")?.trim().clone_into(&mut self.init);
        let ready = || {
            let state = self.output("systemctl is-system-running");
            state.is_ok_and(|state| matches!(state.stdout.trim_ascii(), b"running" | b"degraded"))
        };
        if !eventually(LIMIT, ready) {
            bail!("systemd does not come up: {}", said());
        }
        Ok(())
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        self.outer.kill().ok();
        self.outer.wait().ok();
        fs::remove_file(self.copy.path().with_extension("log")).ok();
        // The groups that systemd has made; they are empty a moment after the last process has ended.
        eventually(LIMIT, || remove_groups(&self.group));
    }
}

/// Removes a control group and those below it. Answers whether it is gone.
fn remove_groups(group: &Path) -> bool {
    let below = fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path());
    below.filter(|path| path.is_dir()).for_each(|path| _ = remove_groups(&path));
    fs::remove_dir(group).is_ok() || !group.exists()
}

/// The folder of the control groups of version 2.
fn control_groups() -> Option<PathBuf> {
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
    places
        .into_iter()
        .find(|place| place.join("cgroup.procs").exists() && place.join("cgroup.controllers").exists())
}
