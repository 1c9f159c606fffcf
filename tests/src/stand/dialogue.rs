//! A program that gets requests line by line and answers each with one line.

use anyhow::{Context, Result};
use rustix::process::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

/// The time after which a test gives up waiting: no answer takes this long.
pub const PATIENCE: Duration = Duration::from_secs(480);

/// A running program. Dropping it kills it.
pub struct Dialogue {
    child: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<String>,
    errors: TempDir,
}

impl Dialogue {
    /// Starts a program.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        let errors = tempfile::tempdir()?;
        let log = File::create(errors.path().join("stderr"))?;
        let what = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().with_context(|| format!("starting {what}"))?;
        let input = child.stdin.take().context("standard input is piped")?;
        let output = child.stdout.take().context("standard output is piped")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { child, input, lines, errors })
    }

    /// The program's process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a line.
    ///
    /// # Errors
    /// The program has ended.
    pub fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}").with_context(|| self.errors())
    }

    /// Waits for the program's next line.
    ///
    /// # Errors
    /// The program has ended, or takes longer than [`PATIENCE`]; the error has the program's standard error.
    pub fn hear(&self) -> Result<String> {
        self.lines.recv_timeout(PATIENCE).with_context(|| self.errors())
    }

    fn errors(&self) -> String {
        let said = std::fs::read_to_string(self.errors.path().join("stderr")).unwrap_or_default();
        format!("a program does not answer: {}", said.trim())
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
