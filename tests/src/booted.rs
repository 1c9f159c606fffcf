//! A Debian in which systemd runs, as the first process of namespaces of its own: for tests of units, and of programs that systemd starts.
//!
//! The system has a network of its own that leads nowhere, or this machine's; a control group of its own, and of this machine's devices only `/dev/null` and its
//! like. It is no virtual machine: its kernel is this machine's, so that a virtual machine in it is emulated once, not twice.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::cgroup::Unit;
use crate::daemon::eventually;
use crate::daemon_process::children;
use crate::packages::{ENVIRONMENT, Installed, namespaces};
use crate::program::{Background, LIMIT, Program};

/// Makes the system's folders and devices, and becomes its first process. `$1` is the archive, `$2` the folder for the copy, and `$3` the
/// folder that the system finds at `/mnt`.
const BOOT: &str = r#"
set -e
tar --extract --file "$1" --directory "$2" --exclude='./dev/*' --warning=no-timestamp
# Settings of the kernel are this machine's.
ln -s /dev/null "$2"/etc/systemd/system/systemd-sysctl.service
echo host >"$2"/etc/hostname
echo '127.0.0.1 localhost host' >"$2"/etc/hosts
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

/// The time between two checks while a condition is awaited.
const PAUSE: Duration = Duration::from_millis(200);

/// The network of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The system has a network of its own that leads nowhere.
    None,
    /// The system shares this machine's.
    Host,
}

/// A running system. Dropping it ends all its processes.
pub struct Booted {
    /// `unshare`, which ends the system's first process when it ends.
    outer: Background,
    /// The number of the system's first process.
    init: u32,
    _group: Unit,
    _copy: TempDir,
}

impl Booted {
    /// Returns the reason, if any, for which this machine cannot have such a system.
    #[must_use]
    pub fn obstacle() -> Option<&'static str> {
        if !rustix::process::geteuid().is_root() {
            return Some("systemd in namespaces needs root");
        }
        Installed::obstacle()
    }

    /// Starts a copy of a system that has systemd, in which `shown` is `/mnt`. Returns when its services have started. If this machine has no control
    /// groups of version 2, the function prints that the caller is skipped, and returns none.
    ///
    /// # Errors
    /// A part of the system cannot be made, or the system does not start.
    pub fn boot(system: &Installed, shown: &Path, network: Network) -> Result<Option<Self>> {
        let Some(group) = Unit::with(&[])? else { return Ok(None) };
        let copy = system.folder_for_copy()?;
        let mut command = namespaces();
        command.args(["--kill-child", "--uts", "--ipc", "--cgroup"]);
        command.args((network == Network::None).then_some("--net"));
        command.args(["sh", "-c", BOOT, "sh"]);
        command.arg(system.archive()).arg(copy.path()).arg(shown);
        let outer = Background::start(group.command(&command))?;
        let mut booted = Self { outer, init: 0, _group: group, _copy: copy };
        booted.await_services().map_err(|error| error.context(booted.outer.errors()))?;
        Ok(Some(booted))
    }

    /// Runs a script of the shell as the system's root, and returns its output.
    ///
    /// # Errors
    /// A command of the script fails, or the script runs for longer than [`LIMIT`]; the message has the output.
    pub fn run(&self, script: &str) -> Result<String> {
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.init.to_string());
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd"]);
        command.args(["env", "-i"]).args(ENVIRONMENT.split(' ')).args(["sh", "-ec", script]);
        let output = Program::start(command)?.wait(LIMIT)?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(output.status.success(), "{script}\n{}: {said}", output.status);
        Ok(said)
    }

    /// Waits until a script succeeds.
    ///
    /// # Errors
    /// The script still fails after `limit`; the message has the last output.
    pub fn wait_for(&self, script: &str, limit: Duration) -> Result<()> {
        let mut last = Ok(String::new());
        eventually(limit, || {
            last = self.run(script);
            last.is_ok() || {
                thread::sleep(PAUSE);
                false
            }
        });
        last.map(drop)
    }

    fn await_services(&mut self) -> Result<()> {
        let outer = u32::try_from(self.outer.pid().as_raw_nonzero().get())?;
        let first = || children(outer).ok().and_then(|children| children.first().copied());
        let mut init = None;
        eventually(LIMIT, || {
            init = first();
            init.is_some()
        });
        self.init = init.context("the system has no first process")?;
        self.wait_for("systemctl is-system-running --wait | grep -x 'running\\|degraded'", LIMIT)
    }
}
