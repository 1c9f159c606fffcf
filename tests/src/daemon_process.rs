//! The daemon under test as a process of its own: builds it, starts it on a Vulkan driver, and ends it as an operator would.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::packages::HostVulkan;
use crate::program::cargo::{build, cargo, cargo_of_users, own_profile};
use crate::program::stat::Stat;
use crate::sources::repository;

/// A running daemon. Dropping it kills it; [`DaemonProcess::stop`] ends it and checks its exit.
pub struct DaemonProcess {
    child: Child,
    folder: TempDir,
}

/// A daemon that takes longer than this to listen or to end hangs.
const PATIENCE: Duration = Duration::from_secs(480);
const POLL: Duration = Duration::from_millis(20);
/// The time of a submission of a software driver depends on the load of the processors, and so do the driver's start and the answer of the frontend in
/// this process: tests about hangs set these limits themselves.
const PATIENT: [(&str, &[&str]); 3] = [
    ("--max-submit-time", &["--max-submit-time", "60min", "--max-submit-time-contended", "60min"]),
    ("--frontend-timeout", &["--frontend-timeout", "60min"]),
    ("--driver-timeout", &["--driver-timeout", "60min"]),
];

/// Returns whether a process listens at the Unix socket at `path`, whose file exists a moment earlier.
fn is_listened_at(path: &Path) -> bool {
    const ACCEPTS_CONNECTIONS: &str = "00010000";
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let listens = |line: &str| {
        line.split_whitespace().nth(3) == Some(ACCEPTS_CONNECTIONS)
            && line.split_once(" /").is_some_and(|(_, rest)| Path::new("/").join(rest) == path)
    };
    sockets.lines().any(listens)
}

impl DaemonProcess {
    /// Starts the daemon on `vulkan` with further command line `arguments`; returns when it listens.
    ///
    /// # Errors
    /// It does not build, or ended instead of listening; the message holds its log.
    pub fn start(vulkan: &HostVulkan, arguments: &[&str]) -> Result<Self> {
        Self::start_executable(&daemon_executable()?, vulkan, arguments)
    }

    /// Starts the daemon like [`DaemonProcess::start`], with an executable that was built before.
    ///
    /// # Errors
    /// As [`DaemonProcess::start`].
    pub fn start_executable(executable: &Path, vulkan: &HostVulkan, arguments: &[&str]) -> Result<Self> {
        Self::start_command(vulkan.command(executable)?, arguments)
    }

    /// Starts the daemon like [`DaemonProcess::start`], by a command that runs it.
    ///
    /// # Errors
    /// As [`DaemonProcess::start`].
    pub fn start_command(mut command: Command, arguments: &[&str]) -> Result<Self> {
        let folder = TempDir::new()?;
        let log = File::create(folder.path().join("log"))?;
        command.arg("--socket-path").arg(folder.path().join("socket")).args(arguments);
        command.args(patience(arguments));
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start the daemon")?;
        let mut daemon = Self { child, folder };
        let started = Instant::now();
        while !is_listened_at(&daemon.socket()) {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("the daemon ended instead of listening ({status})\n{}", daemon.log());
            }
            ensure!(started.elapsed() < PATIENCE, "the daemon does not listen\n{}", daemon.log());
            thread::sleep(POLL);
        }
        Ok(daemon)
    }

    /// The vhost-user socket that the daemon listens on.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The socket at which the daemon listens for operators.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.folder.path().join("socket.control")
    }

    /// The device process's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything that the daemon and its workers logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns whether the process is still there.
    ///
    /// # Errors
    /// The operating system does not know it.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Asks the daemon to end with SIGTERM and demands that it ends soon, with success, and takes its workers along.
    ///
    /// # Errors
    /// The daemon had ended before, does not end, ends with an error, or leaves a worker behind.
    pub fn stop(mut self) -> Result<String> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the daemon had ended before ({})\n{}", describe(status), self.log());
        }
        let workers = workers(self.child.id())?;
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.wait_for_end()?;
        ensure!(
            status.success(),
            "the daemon ended badly after SIGTERM ({})\n{}",
            describe(status),
            self.log()
        );
        let started = Instant::now();
        while workers.iter().any(|worker| Path::new(&format!("/proc/{worker}")).exists()) {
            ensure!(started.elapsed() < PATIENCE, "the daemon left a worker behind\n{}", self.log());
            thread::sleep(POLL);
        }
        Ok(self.log())
    }

    fn wait_for_end(&mut self) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(started.elapsed() < PATIENCE, "the daemon does not end after SIGTERM\n{}", self.log());
            thread::sleep(POLL);
        }
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The options with which a daemon with these `arguments` tolerates a machine that stands still for a while.
pub fn patience(arguments: &[&str]) -> impl Iterator<Item = &'static str> {
    let is_said = |option: &str| arguments.iter().any(|argument| argument.starts_with(option));
    PATIENT
        .into_iter()
        .filter(move |(option, _)| !is_said(option))
        .flat_map(|(_, options)| options.iter().copied())
}

/// Returns the same command, after a line of shell that prepares its process. The command's environment is not the shell's.
#[must_use]
pub fn prepared(line: &str, command: &Command) -> Command {
    let mut prepared = Command::new("sh");
    prepared.args(["-c", &format!("{line} && exec env \"$@\""), "sh"]);
    for (name, value) in command.get_envs() {
        let mut pair = name.to_owned();
        match value {
            Some(value) => {
                pair.push("=");
                pair.push(value);
                prepared.arg(pair);
            }
            None => _ = prepared.env_remove(name),
        }
    }
    prepared.arg(command.get_program()).args(command.get_args());
    prepared
}

/// The worker processes of a daemon, oldest first: below its launcher, each perhaps below a process that represents it outside of its namespaces.
///
/// # Errors
/// `/proc` cannot be read.
pub fn workers(daemon: u32) -> Result<Vec<u32>> {
    let is_worker = |process: &u32| {
        // A process between fork and exec still has its parent's.
        let command_line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        command_line.split(|byte| *byte == 0).nth(1) == Some(b"worker")
    };
    let mut workers = Vec::new();
    let mut todo = children(daemon)?;
    while let Some(process) = todo.pop() {
        todo.extend(children(process).unwrap_or_default());
        workers.extend(Some(process).filter(is_worker));
    }
    workers.sort_by_key(|worker| (start_time(*worker), *worker));
    Ok(workers)
}

/// The time at which a process was started, in the kernel's clock ticks: the kernel uses process numbers again after the largest.
pub(crate) fn start_time(process: u32) -> u64 {
    Stat::of(process).and_then(|stat| stat.started()).unwrap_or(u64::MAX)
}

/// The launcher of a daemon.
///
/// # Errors
/// It has none.
pub fn launcher(daemon: u32) -> Result<u32> {
    children(daemon)?.first().copied().context("the daemon has no launcher")
}

/// Processes that a process has started and that have not ended.
///
/// # Errors
/// It has ended itself.
pub fn children(process: u32) -> Result<Vec<u32>> {
    let mut children = listed_children(process)?;
    // A child that ends meanwhile may hide its next sibling from a list (proc(5)).
    for child in listed_children(process)? {
        if !children.contains(&child) {
            children.push(child);
        }
    }
    Ok(children)
}

fn listed_children(process: u32) -> Result<Vec<u32>> {
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{process}/task")).context("the process has ended")? {
        // A thread that ends meanwhile has none.
        let Ok(task) = task else { continue };
        let listed = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.extend(listed.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
    }
    Ok(children)
}

/// The daemon's executable in the profile this program was built in. A process builds it once, so that it is never stale; on a machine without a
/// compiler, `VHOST_USER_VULKAN_DAEMON` names it.
///
/// # Errors
/// It does not build.
pub fn daemon_executable() -> Result<PathBuf> {
    if let Some(executable) = built_before() {
        return Ok(executable);
    }
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || build_daemon(own_profile()?.ends_with("release"));
    BUILT
        .get_or_init(|| build().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}

/// The daemon's executable, if all programs that tests run were built before: cargo would build nothing, but wait until it has compiled other
/// programs.
fn built_before() -> Option<PathBuf> {
    std::env::var_os("VHOST_USER_VULKAN_DAEMON").map(PathBuf::from)
}

/// Builds the daemon, in the release profile if so wanted, and returns its executable.
///
/// # Errors
/// It does not build.
pub fn build_daemon(release: bool) -> Result<PathBuf> {
    let target = own_profile()?.parent().context("a profile lies in the target folder")?.to_owned();
    let mut cargo = if release { cargo_of_users() } else { cargo() };
    cargo.arg("build").arg("--target-dir").arg(&target);
    if release {
        // Users build it like this. The build takes minutes the first time, and should show its progress.
        cargo.args(["--release", "--package", "daemon"]);
    } else {
        cargo.args(["--quiet", "--bin", "vhost-user-vulkan"]);
    }
    build(&mut cargo, "the daemon")?;
    Ok(target.join(if release { "release" } else { "debug" }).join("vhost-user-vulkan"))
}

/// Builds an example in the debug profile, and returns its executable; `lib{name}.so` lies there instead if it is a library.
///
/// # Errors
/// It does not build.
pub fn build_example(name: &str) -> Result<PathBuf> {
    let target = own_profile()?.parent().context("a profile lies in the target folder")?.to_owned();
    let examples = target.join("debug/examples");
    let is_there = [name.to_owned(), format!("lib{name}.so")].iter().any(|file| examples.join(file).exists());
    if built_before().is_none() || !is_there {
        build(cargo().args(["build", "--quiet", "--example", name, "--target-dir"]).arg(&target), name)?;
    }
    Ok(examples.join(name))
}

/// Builds the program that checks VMs, as users build it, and returns it.
///
/// # Errors
/// It does not build.
pub fn doctor_for_guests() -> Result<PathBuf> {
    let target = own_profile()?.parent().context("a profile lies in the target folder")?.to_owned();
    let mut cargo = cargo_of_users();
    build(
        cargo.args(["--quiet", "doctor-for-guests"]).env("CARGO_TARGET_DIR", &target),
        "the program for VMs",
    )?;
    Ok(target.join("release/vhost-user-vulkan-doctor"))
}

/// Builds a program of integration tests and returns the path of its executable.
///
/// # Errors
/// It does not build.
pub fn integration_test(name: &str) -> Result<PathBuf> {
    let output = cargo().args(["test", "--no-run", "--test", name]).output().context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} does not build\n{said}");
    let path = said.rsplit_once('(').and_then(|(_, rest)| rest.split_once(')'));
    let path = PathBuf::from(path.with_context(|| format!("cargo said {said}"))?.0);
    // cargo names it relative to the workspace when the target folder lies there.
    Ok(repository().join(path))
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => status.to_string(),
    }
}
