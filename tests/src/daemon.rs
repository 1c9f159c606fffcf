//! The daemon as behaviour tests see it: guests connect to it, and `/proc` shows its holdings.
//!
//! Knows nothing of its inside. It runs on the software driver of the package cache unless `VHOST_USER_VULKAN_GPU` is set:
//! then on the machine's own drivers, with that `--gpu` selection unless it is empty. `VHOST_USER_VULKAN_OPTIONS` holds further
//! options for all daemons of a test run.

use crate::daemon_process::{self, DaemonProcess, daemon_executable};
use crate::frontend::{Options, Session};
use crate::guest::{Gpu, PATIENCE};
use crate::packages::HostVulkan;
use crate::program::stat::Stat;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::DirEntry;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Options of a daemon that makes no checkpoints: each context is lost with its worker, even after its program has done nothing for a while.
pub const WITHOUT_CHECKPOINTS: [&str; 2] = ["--checkpoint-after", "0"];

/// A daemon that listens. When it is dropped, its log is printed, which shows if the test fails.
pub struct Daemon(Option<DaemonProcess>);

impl Daemon {
    /// Starts the daemon.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts the daemon with further options.
    pub fn start_with(options: &[&str]) -> Result<Self> {
        Self::start_on(&vulkan()?, options)
    }

    /// Starts the daemon with a limit of `most` open files for each process.
    pub fn start_with_open_files(most: u32) -> Result<Self> {
        let unlimited = vulkan()?.command(&daemon_executable()?)?;
        let mut limited = Command::new("prlimit");
        limited.arg(format!("--nofile={most}:{most}")).arg("env");
        // The daemon's libraries are not those of the programs that start it.
        for (name, value) in unlimited.get_envs() {
            match value {
                Some(value) => limited.arg([name, "=".as_ref(), value].join("".as_ref())),
                None => limited.env_remove(name),
            };
        }
        limited.arg(unlimited.get_program()).args(unlimited.get_args());
        DaemonProcess::start_command(limited, &[]).map(|process| Self(Some(process)))
    }

    /// Starts the daemon on the software driver below the validation layer; the layer's findings come with the log. The layer makes calls that no
    /// driver needs.
    pub fn start_validated(options: &[&str]) -> Result<Self> {
        let options = [&["--max-log-lines", "1000000", "--seccomp", "off"], options].concat();
        Self::start_on(&HostVulkan::validated()?, &options)
    }

    /// Starts the daemon on the software driver, with a C library whose fresh memory is filled with other bytes than zero.
    pub fn start_poisoned(options: &[&str]) -> Result<Self> {
        match vulkan()? {
            HostVulkan::Lavapipe(root) => Self::start_on(&HostVulkan::Poisoned(root), options),
            other => Self::start_on(&other, options),
        }
    }

    /// Starts the daemon on the machine's own Vulkan drivers.
    pub fn start_on_machine(options: &[&str]) -> Result<Self> {
        Self::start_on(&HostVulkan::System, options)
    }

    /// Starts the daemon with these two GPUs, which [`two_gpus`] found.
    pub fn start_on_two(vulkan: &HostVulkan, [first, second]: &[String; 2]) -> Result<Self> {
        let arguments = ["--gpu", first, "--gpu", second];
        DaemonProcess::start(vulkan, &arguments).map(|process| Self(Some(process)))
    }

    /// Starts the daemon on this driver, which must be kept as long as the daemon, with further options.
    pub fn start_on(vulkan: &HostVulkan, options: &[&str]) -> Result<Self> {
        let selection = gpu_selection();
        let selection = selection.iter().flat_map(|gpu| ["--gpu", gpu.as_str()]);
        let further = std::env::var("VHOST_USER_VULKAN_OPTIONS").unwrap_or_default();
        let arguments: Vec<&str> =
            selection.chain(further.split_whitespace()).chain(options.iter().copied()).collect();
        DaemonProcess::start(vulkan, &arguments).map(|process| Self(Some(process)))
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
        Pid::from_raw(self.id() as i32).expect("a process that was started has a number")
    }

    /// The daemon's live workers, oldest first.
    pub fn workers(&self) -> Vec<Pid> {
        let workers = daemon_process::workers(self.id()).unwrap_or_default();
        workers
            .into_iter()
            .filter_map(|child| Pid::from_raw(child as i32))
            .filter(|&child| is_alive(child))
            .collect()
    }

    /// Waits until the daemon has exactly this many workers.
    pub fn wait_for_workers(&self, count: usize) -> Result<Vec<Pid>> {
        let mut workers = Vec::new();
        let reached = eventually(PATIENCE, || {
            workers = self.workers();
            workers.len() == count
        });
        ensure!(reached, "{} workers instead of {count}\n{}", workers.len(), self.log());
        Ok(workers)
    }

    /// Returns whether the device process runs.
    pub fn is_running(&self) -> bool {
        is_alive(self.pid())
    }

    /// The process itself, to end it.
    pub fn into_process(mut self) -> DaemonProcess {
        self.0.take().expect("only this takes it")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(process) = &self.0 {
            println!("the daemon's log:\n{}", process.log());
        }
    }
}

impl Deref for Daemon {
    type Target = DaemonProcess;

    fn deref(&self) -> &DaemonProcess {
        self.0.as_ref().expect("only `into_process` takes it, and ends this")
    }
}

/// The resources that a process holds, for leak checks.
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
    /// Counts the present holdings of a process.
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
    let ticks = Stat::of(number(pid)).and_then(|stat| stat.ticks()).context("processor time")?;
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Polls until the condition holds, for conditions without an event to wait for.
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

/// Returns whether a process exists and has not ended.
pub fn is_alive(pid: Pid) -> bool {
    Stat::of(number(pid)).and_then(|stat| stat.state()).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Stops a process, and waits until all of its threads stand still: the signal reaches one thread, which stops the others when the scheduler runs it.
///
/// # Errors
/// There is no such process, or it continues to run.
pub fn halt(pid: Pid) -> Result<()> {
    kill_process(pid, Signal::STOP)?;
    ensure!(eventually(PATIENCE, || stands_still(pid)), "process {} goes on", pid.as_raw_nonzero());
    Ok(())
}

/// Returns whether a signal has stopped all threads of a process.
fn stands_still(pid: Pid) -> bool {
    let threads =
        std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    let state = |thread: DirEntry| Stat::in_folder(&thread.path())?.state();
    threads.map(state).all(|state| state == Some('T'))
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().cast_unsigned()
}

/// Ends a process by a signal, as a crash in it would.
///
/// Rust's own handler takes the first SIGSEGV or SIGBUS that no access of the process has caused for a mistake, and removes itself. The signal is
/// therefore repeated.
pub fn die_by(pid: Pid, signal: Signal) -> bool {
    eventually(PATIENCE, || {
        let _ = kill_process(pid, signal);
        !is_alive(pid)
    })
}

/// The daemon's command, without options.
pub fn bare_command() -> Result<Command> {
    vulkan()?.command(&daemon_executable()?)
}

/// The daemon's command, without options but the GPU's.
pub fn command() -> Result<Command> {
    let mut command = bare_command()?;
    command.args(gpu_selection().iter().flat_map(|gpu| ["--gpu", gpu.as_str()]));
    Ok(command)
}

/// The daemon's command like [`bare_command`], with an executable that was built before.
pub fn command_of(executable: &Path) -> Result<Command> {
    vulkan()?.command(executable)
}

fn vulkan() -> Result<HostVulkan> {
    if on_machine() { Ok(HostVulkan::System) } else { HostVulkan::lavapipe() }
}

/// Returns whether daemons under test run on the machine's own drivers.
#[must_use]
pub fn on_machine() -> bool {
    std::env::var_os("VHOST_USER_VULKAN_GPU").is_some()
}

/// Two GPUs, by their UUIDs: software ones, or the machine's own if the daemon under test runs on these. `None` if the machine does not have two.
pub fn two_gpus() -> Result<Option<(HostVulkan, [String; 2])>> {
    let vulkan = match vulkan()? {
        HostVulkan::System => HostVulkan::System,
        _ => HostVulkan::twins()?,
    };
    let gpus = vulkan.usable_gpus(&daemon_executable()?)?;
    println!("{gpus:?}");
    let on_machine = matches!(vulkan, HostVulkan::System);
    let fitting = gpus.into_iter().filter(|gpu| !(on_machine && gpu.software));
    let mut uuids = fitting.map(|gpu| gpu.uuid);
    let two = uuids.next().zip(uuids.next());
    ensure!(on_machine || two.is_some(), "no second software GPU");
    Ok(two.map(|(first, second)| (vulkan, [first, second])))
}

/// The GPU that daemons under test are told to use, if any.
pub fn gpu_selection() -> Option<String> {
    std::env::var("VHOST_USER_VULKAN_GPU").ok().filter(|gpu| !gpu.is_empty())
}
