//! A running daemon: started, watched and ended as an operator would, without a look inside.
//!
//! Knows the command line and `/proc`, nothing else. Without further settings the daemon runs on the software driver of the
//! package cache. `VHOST_USER_VULKAN` names another executable; `VHOST_USER_VULKAN_GPU` makes it use the machine's own
//! drivers, and is its `--gpu` selection unless empty.

use crate::frontend::{Options, Session};
use crate::guest::Gpu;
use crate::packages::HostVulkan;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A daemon that listens on a socket of its own. Dropping it kills it; what it logged is printed if the test failed.
pub struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    /// Starts it and waits until its socket is there.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// The same with further options.
    pub fn start_with(options: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = command()?;
        command.arg("--socket-path").arg(folder.path().join("vhost.sock")).args(options);
        let log = File::create(folder.path().join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let mut daemon = Self { child, folder };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !daemon.socket().exists() {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("the daemon ended with {status}: {}", daemon.log());
            }
            ensure!(Instant::now() < deadline, "the daemon does not listen: {}", daemon.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("vhost.sock")
    }

    /// A folder that vanishes with the daemon, for sockets beside its own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A guest with default options.
    pub fn guest(&self) -> Result<Gpu> {
        self.guest_with(Options::default())
    }

    /// A guest: a new session, whose device has just been reset.
    pub fn guest_with(&self, options: Options) -> Result<Gpu> {
        Ok(Gpu::new(Session::connect(&self.socket(), options)?))
    }

    /// The device process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The live processes it started: its workers.
    pub fn workers(&self) -> Vec<Pid> {
        children(self.pid())
    }

    /// Waits until it has exactly this many workers.
    pub fn wait_for_workers(&self, count: usize) -> Result<Vec<Pid>> {
        let mut workers = Vec::new();
        let reached = eventually(Duration::from_secs(10), || {
            workers = self.workers();
            workers.len() == count
        });
        ensure!(reached, "{} workers instead of {count}", workers.len());
        Ok(workers)
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Whether the device process runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGTERM and waits for the end; kills it after 10 s, which is an error.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        kill_process(self.pid(), Signal::TERM)?;
        let mut status = None;
        let ended = eventually(Duration::from_secs(10), || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        ensure!(ended, "the daemon ignores SIGTERM: {}", self.log());
        status.context("the daemon's exit status")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the daemon's log\n{}---", self.log());
        }
    }
}

/// What a process holds, for leak checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Memory of its own that is resident, KiB.
    pub anonymous_kib: u64,
    /// Mappings in its address space.
    pub mappings: usize,
}

impl Holdings {
    /// What a process holds now.
    pub fn of(pid: Pid) -> Result<Self> {
        let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let status = std::fs::read_to_string(proc.join("status"))?;
        let field = |name: &str| -> Option<u64> {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        Ok(Self {
            descriptors: std::fs::read_dir(proc.join("fd"))?.count(),
            threads: std::fs::read_dir(proc.join("task"))?.count(),
            anonymous_kib: field("RssAnon:").or_else(|| field("VmRSS:")).context("resident memory")?,
            mappings: std::fs::read_to_string(proc.join("maps"))?.lines().count(),
        })
    }
}

/// Processor time a process has used so far, in the kernel's resolution of 10 ms.
pub fn cpu_time(pid: Pid) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // utime and stime are fields 14 and 15 of the file; the first two are cut off here.
    let ticks = |field: usize| fields.get(field).and_then(|ticks| ticks.parse::<u64>().ok());
    let used = ticks(11).zip(ticks(12)).context("processor time")?;
    Ok(Duration::from_millis((used.0 + used.1) * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Polls until the condition holds; for what has no event to wait for.
pub fn eventually(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The daemon's command, without options but the GPU's.
pub fn command() -> Result<Command> {
    let executable = executable()?;
    match std::env::var("VHOST_USER_VULKAN_GPU") {
        Ok(gpu) => {
            let mut command = HostVulkan::System.command(executable)?;
            if !gpu.is_empty() {
                command.args(["--gpu", &gpu]);
            }
            Ok(command)
        }
        Err(_) => HostVulkan::lavapipe()?.command(executable),
    }
}

/// The executable under test, built on first use beside the running test.
fn executable() -> Result<&'static Path> {
    static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = std::env::var_os("VHOST_USER_VULKAN") {
        return Ok(EXECUTABLE.get_or_init(|| path.into()));
    }
    if let Some(path) = EXECUTABLE.get() {
        return Ok(path);
    }
    let test = std::env::current_exe()?;
    // <target>/<profile>/deps/<test> or <target>/<profile>/<binary>.
    let deps = test.parent().filter(|folder| folder.ends_with("deps"));
    let profile = deps.or(Some(&test)).and_then(Path::parent).context("the test's build folder")?;
    let target = profile.parent().context("the test's target folder")?;
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--package", "daemon", "--target-dir"]).arg(target);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    ensure!(build.status().context("running cargo")?.success(), "the daemon does not build");
    Ok(EXECUTABLE.get_or_init(|| profile.join("vhost-user-vulkan")))
}

/// Processes whose parent is `pid` and that have not ended.
fn children(pid: Pid) -> Vec<Pid> {
    let parent = pid.as_raw_nonzero().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |number: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        // Behind the name in parentheses: state and parent.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        !matches!(fields.next(), Some("Z" | "X") | None) && fields.next() == Some(parent.as_str())
    };
    numbers.filter(is_child).filter_map(Pid::from_raw).collect()
}
