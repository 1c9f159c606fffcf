//! The device process's side of its launcher. This file knows no contexts: children have numbers.

use super::Options;
use super::this_program::this_program;
use crate::ipc::{
    Channel, ChildRole, DriverFamily, FromLauncher, ReceiveError, Replaced, SendError, ToLauncher,
};
use outside::{SocketFile, Span};
use rustix::event::PollFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A process that starts workers and probes for the device process, which may start none itself.
#[derive(Debug)]
pub struct Launcher {
    channel: Channel,
    /// The parts of the sandbox that this system lacks.
    lacks: Vec<String>,
    /// The launcher's process, if this process has started it.
    process: Option<Mutex<Child>>,
}

/// The end of a child.
#[derive(Debug)]
pub struct Ended {
    /// The number that the child got at its start.
    pub child: u32,
    /// The status of the process, or the reason why it was not started.
    pub status: Result<ExitStatus, String>,
    /// The kernel killed the child, because the workers' control group has no memory left.
    pub out_of_memory: bool,
}

/// The messages of the launcher while the device process serves.
#[derive(Debug)]
pub enum FromChildren {
    /// A child has ended.
    Ended(Ended),
    /// The launcher has carried out its order about a set of kept descriptors.
    Released(u64),
    /// A file has been replaced or changed.
    Replaced(Replaced),
}

/// Time that the launcher has to start and to try out the sandbox: on an overloaded host that takes many seconds. systemd allows 90 s for a start.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Time that the launcher has to end.
const END_PATIENCE: Duration = Duration::from_secs(10);

impl Launcher {
    /// Starts a launcher for the VM of this name. Its children run this program (or the one in `exe`) in the control group `workers`,
    /// if one is given. Only the main thread may call this.
    ///
    /// # Errors
    ///
    /// The launcher cannot be started or does not answer.
    pub fn start(
        options: &Options,
        exe: Option<&Path>,
        log_level: &str,
        workers: Option<&Path>,
        vm: Option<&str>,
        data: Option<u64>,
    ) -> io::Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        let mut command = this_program(theirs.into_socket());
        command.arg("launcher").args(["--log-level", log_level]).args(options.arguments());
        if let Some(exe) = exe {
            command.arg("--exe").arg(exe);
        }
        if let Some(workers) = workers {
            command.arg("--cgroup").arg(workers);
        }
        if let Some(vm) = vm {
            command.args(["--vm-name", vm]);
        }
        if let Some(data) = data {
            command.args(["--max-worker-data", &data.to_string()]);
        }
        let process = Some(Mutex::new(command.spawn()?));
        // The command holds the other end of the channel, which must not outlive the launcher.
        drop(command);
        let mut launcher = Self { channel, lacks: Vec::new(), process };
        let late = |error: io::Error| match error.kind() {
            io::ErrorKind::TimedOut => io::Error::new(
                error.kind(),
                format!("it has not started within {}: this host is overloaded", Span(START_PATIENCE)),
            ),
            _ => error,
        };
        match launcher.receive_within(START_PATIENCE).map_err(late)? {
            FromLauncher::Ready { lacks } => launcher.lacks = lacks,
            FromLauncher::Ended { .. } | FromLauncher::Released { .. } | FromLauncher::Replaced(_) => {
                return Err(io::Error::other("the launcher's first message is not that it is ready"));
            }
        }
        Ok(launcher)
    }

    /// Returns a launcher that a test plays at the other end of `channel`.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn played(channel: Channel) -> io::Result<Self> {
        let process = Some(Mutex::new(std::process::Command::new("/bin/true").spawn()?));
        Ok(Self { channel, lacks: Vec::new(), process })
    }

    /// Takes over the launcher that another device process has started. The launcher ends, with its children, when the returned value is dropped.
    pub fn inherited(channel: OwnedFd) -> Self {
        Self { channel: Channel::from_socket(channel), lacks: Vec::new(), process: None }
    }

    /// Returns the parts of the sandbox that this system lacks, one entry for each.
    pub fn lacks(&self) -> &[String] {
        &self.lacks
    }

    /// Starts a child that has `channel` as its only descriptor beyond standard input (empty), output and error, which are both `output`. The
    /// launcher reports its end later.
    pub fn launch(
        &self,
        child: u32,
        role: ChildRole,
        family: DriverFamily,
        channel: &OwnedFd,
        output: &OwnedFd,
    ) -> io::Result<()> {
        self.send(&ToLauncher::Output, Some(output.as_fd()))?;
        self.send(&ToLauncher::Start { child, role, family }, Some(channel.as_fd()))
    }

    /// Kills a child, if it still runs.
    pub fn kill(&self, child: u32) {
        if let Err(error) = self.send(&ToLauncher::Kill { child }, None) {
            // The launcher's children end with it.
            log::debug!(error:%; "the launcher is gone");
        }
    }

    /// Tells the launcher to remove socket files when this process is gone: the VM's, if a device process has made it, and others. Only the first
    /// call counts.
    pub fn remove_at_end(&self, socket: Option<SocketFile>, others: Vec<PathBuf>) -> io::Result<()> {
        let socket = socket.map(|file| (file.path().to_owned(), file.identity()));
        self.send(&ToLauncher::RemoveAtEnd { socket, others }, None)
    }

    /// Tells the launcher to remove no socket file: another process serves there.
    pub fn leave_at_end(&self) -> io::Result<()> {
        self.send(&ToLauncher::LeaveAtEnd, None)
    }

    /// Has the launcher watch the files of this family's drivers, and the VM's socket file, if it is to remove that.
    pub fn watch(&self, family: DriverFamily) -> io::Result<()> {
        self.send(&ToLauncher::Watch { family }, None)
    }

    /// Tells the launcher which process may have mapped the kept memory from now on; `None` if it is not known.
    pub fn frontend(&self, process: Option<&OwnedFd>) -> io::Result<()> {
        self.send(&ToLauncher::Frontend, process.map(AsFd::as_fd))
    }

    /// Tells the launcher to keep a descriptor of a set, if need be beyond the end of this process.
    pub fn keep(&self, set: u64, fd: &OwnedFd) -> io::Result<()> {
        self.send(&ToLauncher::Keep { set }, Some(fd.as_fd()))
    }

    /// Tells the launcher to close a set.
    pub fn let_go(&self, set: u64) -> io::Result<()> {
        self.send(&ToLauncher::LetGo { set }, None)
    }

    /// Tells the launcher to keep a set until the frontend's process has ended.
    pub fn keep_on(&self, set: u64) -> io::Result<()> {
        self.send(&ToLauncher::KeepOn { set }, None)
    }

    /// Returns the next message of the launcher, if one has come.
    ///
    /// # Errors
    ///
    /// The launcher is gone, and every child with it.
    pub fn heard(&self) -> io::Result<Option<FromChildren>> {
        match self.channel.try_receive() {
            Ok(Some((message, _))) => Self::meaning(message).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(gone(&error)),
        }
    }

    /// Waits up to `limit` for the end of a child, and returns its report.
    pub fn ended_within(&self, limit: Duration) -> io::Result<Ended> {
        loop {
            if let FromChildren::Ended(ended) = Self::meaning(self.receive_within(limit)?)? {
                return Ok(ended);
            }
        }
    }

    /// Ends the launcher and waits for its end: the launcher kills the children that still run and removes the files of [`Self::remove_at_end`].
    pub fn finish(self) {
        let Self { channel, process, .. } = self;
        drop(channel);
        let Some(Ok(mut process)) = process.map(Mutex::into_inner) else { return };
        let patience = Instant::now() + END_PATIENCE;
        while let Ok(None) = process.try_wait() {
            if Instant::now() > patience {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn meaning(message: FromLauncher) -> io::Result<FromChildren> {
        match message {
            FromLauncher::Ended { child, status, out_of_memory } => {
                let status = status.map(ExitStatus::from_raw);
                Ok(FromChildren::Ended(Ended { child, status, out_of_memory }))
            }
            FromLauncher::Released { set } => Ok(FromChildren::Released(set)),
            FromLauncher::Replaced(what) => Ok(FromChildren::Replaced(what)),
            FromLauncher::Ready { .. } => Err(io::Error::other("the launcher says twice that it is ready")),
        }
    }

    fn send(&self, message: &ToLauncher, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.channel.send(message, fd).map_err(|error| match error {
            SendError::Io(error) => error.into(),
            error => io::Error::other(error),
        })
    }

    fn receive_within(&self, limit: Duration) -> io::Result<FromLauncher> {
        if readiness::within(&self.channel, PollFlags::IN, limit)?.is_empty() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.channel.receive().map(|(message, _)| message).map_err(|error| gone(&error))
    }
}

fn gone(error: &ReceiveError) -> io::Error {
    io::Error::other(format!("the launcher of workers is gone: {error}"))
}

impl AsFd for Launcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
