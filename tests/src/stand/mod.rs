//! Daemons with a bridge for each VM, and programs on the devices behind them, for measurements.
//!
//! `place` says where daemon, drivers and programs come from, `dialogue` is a program that is asked line by line. Knows nothing of the measurements.

mod dialogue;
mod place;

pub use dialogue::{Dialogue, PATIENCE};
pub use place::{Drivers, OwnDaemon, Place, Setting, default_name};

use crate::bridge::Bridge;
use crate::daemon::eventually;
use crate::daemon_process::{children, workers};
use crate::frontend::{Options, Session};
use crate::guest::Gpu;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Daemons and bridges; ends with this value.
pub struct Stand {
    // In the order in which they end.
    bridges: Vec<Bridge>,
    daemons: Vec<Running>,
    folder: TempDir,
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let ended = eventually(PATIENCE, || !matches!(self.0.try_wait(), Ok(None)));
        if !ended {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl Stand {
    /// A stand without daemons and bridges.
    ///
    /// # Errors
    /// There is no room for files.
    pub fn new() -> Result<Self> {
        Ok(Self { bridges: Vec::new(), daemons: Vec::new(), folder: tempfile::tempdir()? })
    }

    /// The daemon of a guest for one VM, and its bridge.
    ///
    /// # Errors
    /// The daemon does not start.
    pub fn with_daemon(place: &Place, guest: &str, vm: &str) -> Result<Self> {
        let mut stand = Self::new()?;
        let mut daemon = place.daemon_of(guest)?;
        let further = std::env::var("VHOST_USER_VULKAN_OPTIONS").unwrap_or_default();
        daemon.arg("--socket-path").arg(stand.device_socket(vm)).args(further.split_whitespace());
        stand.spawn(daemon)?;
        stand.connect(vm)?;
        Ok(stand)
    }

    /// Starts a daemon.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&mut self, mut daemon: Command) -> Result<()> {
        let log = File::options().append(true).create(true).open(self.path("log"))?;
        daemon.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.daemons.push(Running(daemon.spawn().context("cannot start the daemon")?));
        Ok(())
    }

    /// Waits for the device of a VM, and makes a bridge to it.
    ///
    /// # Errors
    /// The device does not start.
    pub fn connect(&mut self, vm: &str) -> Result<()> {
        let socket = self.device_socket(vm);
        let mut is_over = || self.daemons.iter_mut().any(|daemon| !daemon.is_running());
        let _ = eventually(PATIENCE, || socket.exists() || is_over());
        ensure!(!is_over(), "the daemon ended\n{}", self.log());
        let connected = Session::connect(&socket, Options::default());
        let session = connected.with_context(|| format!("no device for {vm}\n{}", self.log()))?;
        self.bridges.push(Bridge::listen(&self.client_socket(vm), Gpu::new(session))?);
        Ok(())
    }

    /// The bridge that was made as the one of this number.
    #[must_use]
    pub fn bridge(&self, vm: usize) -> Option<&Bridge> {
        self.bridges.get(vm)
    }

    /// Returns the daemons' log.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Starts to wait until a text is logged; the thread returns the time from now to that moment.
    #[must_use]
    pub fn watch_for(&self, what: &'static str, limit: Duration) -> JoinHandle<Option<Duration>> {
        let (file, start) = (self.path("log"), Instant::now());
        std::thread::spawn(move || {
            let logged = || std::fs::read_to_string(&file).is_ok_and(|log| log.contains(what));
            eventually(limit, logged).then(|| start.elapsed())
        })
    }

    /// A file of the daemons.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The socket of a VM's device.
    #[must_use]
    pub fn device_socket(&self, vm: &str) -> PathBuf {
        self.path(&format!("{vm}.gpu"))
    }

    /// The socket to which programs of a VM connect.
    #[must_use]
    pub fn client_socket(&self, vm: &str) -> PathBuf {
        self.path(&format!("{vm}.vtest"))
    }

    /// All processes of the daemons, themselves included.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn processes(&self) -> Result<Vec<Pid>> {
        all_below(self.daemons.iter().map(|daemon| daemon.0.id()).collect())
    }

    /// The processes among them that contexts have of their own: workers, and the processes that stand for workers outside of their namespaces.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn processes_of_contexts(&self) -> Result<Vec<Pid>> {
        let mut found = Vec::new();
        for daemon in &self.daemons {
            for launcher in children(daemon.0.id())? {
                found.extend(children(launcher)?);
            }
        }
        all_below(found)
    }

    /// The workers among the daemons' processes.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn workers(&self) -> Result<Vec<Pid>> {
        let devices =
            self.daemons.iter().map(|daemon| children(daemon.0.id())).collect::<Result<Vec<_>>>()?;
        let workers = devices.into_iter().flatten().map(workers).collect::<Result<Vec<_>>>()?;
        Ok(workers.into_iter().flatten().filter_map(|pid| Pid::from_raw(pid as i32)).collect())
    }
}

/// Returns these processes, and all that they started.
fn all_below(mut found: Vec<u32>) -> Result<Vec<Pid>> {
    let mut at = 0;
    while let Some(process) = found.get(at) {
        found.extend(children(*process)?);
        at += 1;
    }
    Ok(found.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)).collect())
}

impl Running {
    fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}
