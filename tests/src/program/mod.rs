//! Programs that are run to their end, or until a limit: a client that lost its connection may spin for ever.

pub mod cargo;
pub mod executable;
pub(crate) mod silence;
pub(crate) mod stat;
pub mod variable;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use silence::{Silence, ticks_of};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A program or a machine that takes longer hangs, however slow and busy this machine is ([`end_of`]). The limit is shorter than the time after which
/// `cargo acceptance` ends a stage that prints nothing, even if its processes use a processor.
pub const LIMIT: Duration = Duration::from_secs(30 * 60);

/// A running program whose output is collected. Dropping it kills the program and all its descendants.
pub struct Program {
    child: Child,
    what: String,
    output: Vec<JoinHandle<Vec<u8>>>,
}

impl Program {
    /// Starts a command without input.
    pub fn start(mut command: Command) -> Result<Self> {
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let what = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().with_context(|| format!("starting {what}"))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let output = vec![std::thread::spawn(|| collect(stdout)), std::thread::spawn(|| collect(stderr))];
        Ok(Self { child, what, output })
    }

    /// The program's process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns whether the program has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Waits for the end; a program that is still running after `limit` is killed, which is an error.
    pub fn wait(self, limit: Duration) -> Result<Output> {
        let what = self.what.clone();
        let (status, output) = self.end_within(limit)?;
        let said = String::from_utf8_lossy(&output.stderr);
        status.with_context(|| format!("{what} ran for more than {limit:?}: {said}"))?;
        Ok(output)
    }

    /// Waits for the end; a program that is still running after `limit` is killed and has no status of its own.
    pub fn end_within(mut self, limit: Duration) -> Result<(Option<ExitStatus>, Output)> {
        let status = end_of(&mut self.child, limit)?;
        self.kill();
        let last = self.child.wait()?;
        let mut output = self.output.drain(..).map(|thread| thread.join().unwrap_or_default());
        let (stdout, stderr) = (output.next().unwrap_or_default(), output.next().unwrap_or_default());
        drop(output);
        Ok((status, Output { status: last, stdout, stderr }))
    }

    /// Kills the program and everything it started.
    pub fn kill(&mut self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.output.is_empty() {
            self.kill();
        }
    }
}

/// A program in the background, whose output can be read while it runs. Dropping it kills the program and all its descendants.
pub struct Background {
    child: Child,
    folder: TempDir,
}

impl Background {
    /// Starts a command without input.
    pub fn start(mut command: Command) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = |name| File::create(folder.path().join(name));
        command.stdin(Stdio::null()).stdout(file("stdout")?).stderr(file("stderr")?).process_group(0);
        let what = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("starting {what}"))?;
        Ok(Self { child, folder })
    }

    /// The program's process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the program's standard output so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stdout")).unwrap_or_default()
    }

    /// Returns the program's standard error so far.
    pub fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    /// Waits for the end; a program that is still running after `limit` is an error.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let status = end_of(&mut self.child, limit)?;
        status.with_context(|| format!("still running after {limit:?}: {}", self.errors()))
    }

    /// Returns whether the program still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Runs a command and demands success; returns its standard output.
pub fn succeed(command: Command, limit: Duration) -> Result<String> {
    let output = Program::start(command)?.wait(limit)?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    Ok(stdout)
}

/// Waits for the end of a process. Returns none if the process is still running when this process and all that it has started have been idle for
/// `limit`, or after four times `limit`: on a busy machine programs are slow.
///
/// # Errors
/// The process cannot be waited for.
pub fn end_of(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let mut silence = Silence::new(limit);
    let mut look = Instant::now() + silence.pause();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= look {
            if silence.look(ticks_of([std::process::id()])).is_some() {
                return Ok(None);
            }
            look = Instant::now() + silence.pause();
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

fn collect(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes
}
