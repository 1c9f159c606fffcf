//! A daemon with a bridge in front of it, as a client needs it, and the check that no resource of a client remains when the last client has ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::bridge::Bridge;
use crate::daemon::{Daemon, Holdings, eventually};
use crate::guest::Gpu;

/// The time that a device may take to notice that its clients have ended.
const PATIENCE: Duration = Duration::from_secs(480);

/// A running daemon and its bridge.
pub struct Setup {
    // In the order in which they end.
    bridge: Bridge,
    socket: PathBuf,
    _folder: TempDir,
    daemon: Daemon,
}

impl Setup {
    /// Starts both.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start() -> Result<Self> {
        Self::on(Daemon::start()?)
    }

    /// Starts a bridge in front of `daemon`.
    ///
    /// # Errors
    /// The daemon refuses it.
    pub fn on(daemon: Daemon) -> Result<Self> {
        Self::with_capset(daemon, |capset| capset)
    }

    /// Does the same, but shows clients the capability set that `changed` makes of the daemon's, as if the host were another one.
    ///
    /// # Errors
    /// The daemon refuses it.
    pub fn with_capset(daemon: Daemon, changed: impl Fn(Vec<u8>) -> Vec<u8>) -> Result<Self> {
        // Mesa aborts without a message when the bridge hangs up: the bridge's warnings say why a client failed. A second call in a process fails,
        // and the first logger stays in use.
        let warnings = env_logger::Env::default().default_filter_or("warn");
        let _ = env_logger::Builder::from_env(warnings).is_test(true).try_init();
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("vtest.sock");
        let bridge = Bridge::listen_as(&socket, daemon.guest()?, changed)?;
        Ok(Self { bridge, socket, _folder: folder, daemon })
    }

    /// The vtest socket clients connect to.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The guest whose processes the clients are.
    #[must_use]
    pub fn guest(&self) -> &Arc<Gpu> {
        self.bridge.gpu()
    }

    /// The daemon.
    #[must_use]
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Waits until the clients' resources no longer exist: connections, workers, blobs. Returns the remaining holdings of the device process.
    ///
    /// # Errors
    /// Something is left.
    pub fn settle(&self) -> Result<Holdings> {
        let workers = || self.daemon.workers().len();
        ensure!(
            eventually(PATIENCE, || workers() == 0),
            "{} workers are left\n{}",
            workers(),
            self.daemon.log()
        );
        let gone = || self.bridge.live_clients() == 0;
        ensure!(eventually(PATIENCE, gone), "{} connections are left", self.bridge.live_clients());
        let window = &self.bridge.gpu().session.window;
        ensure!(eventually(PATIENCE, || window.live() == 0), "{} maps are left", window.live());
        ensure!(window.violations().is_empty(), "{:?}", window.violations());
        Holdings::of(self.daemon.pid())
    }

    /// Checks that the device process comes to hold no more than `before`. Returns its holdings. (The bridge shares this process with other tests and
    /// is not looked at.)
    ///
    /// # Errors
    /// Something leaks, or is left.
    pub fn check_for_leaks(&self, before: Holdings) -> Result<Holdings> {
        let mut after = self.settle()?;
        // A worker that has ended may still have to be reaped.
        let is_no_more = eventually(PATIENCE, || {
            after = Holdings::of(self.daemon.pid()).unwrap_or(after);
            after.descriptors <= before.descriptors
                && after.threads <= before.threads
                && after.mappings <= before.mappings + 8
                && after.anonymous_kib <= before.anonymous_kib + 2048
        });
        ensure!(is_no_more, "{before:?} became {after:?}");
        Ok(after)
    }

    /// Checks that the device process lives.
    ///
    /// # Errors
    /// The device process has ended; the message holds its log.
    pub fn check_alive(&self) -> Result<()> {
        let alive = self.daemon.is_running().then_some(());
        alive.with_context(|| format!("the daemon has ended\n{}", self.daemon.log()))
    }
}
