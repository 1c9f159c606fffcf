//! QEMU's machine protocol, as far as the tests steer a machine with it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::daemon::eventually;
use crate::guest::PATIENCE;

/// A connection to a running QEMU.
pub(super) struct Qmp {
    reader: BufReader<UnixStream>,
    /// Events that no call has waited for.
    events: Vec<String>,
}

impl Qmp {
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let mut connected = UnixStream::connect(socket);
        // The file exists before QEMU listens.
        eventually(PATIENCE, || {
            if connected.is_err() {
                connected = UnixStream::connect(socket);
            }
            connected.is_ok()
        });
        let stream = connected.context("cannot connect to QEMU's control socket")?;
        stream.set_read_timeout(Some(Duration::from_secs(600)))?;
        let mut qmp = Self { reader: BufReader::new(stream), events: Vec::new() };
        qmp.line()?;
        qmp.execute("qmp_capabilities")?;
        Ok(qmp)
    }

    /// Runs a command without arguments and waits for its answer.
    pub(super) fn execute(&mut self, command: &str) -> Result<()> {
        self.send(&format!(r#"{{"execute": "{command}"}}"#))
    }

    /// Runs a command, given as a whole line, and waits for its answer.
    pub(super) fn send(&mut self, command: &str) -> Result<()> {
        // The line is sent in one write: QEMU may execute the command, and close, before it reads the end of the line.
        self.reader.get_mut().write_all(format!("{command}\n").as_bytes())?;
        loop {
            let line = self.line()?;
            // Events may come in between; they begin with neither word.
            if line.starts_with(r#"{"return""#) {
                return Ok(());
            }
            if line.starts_with(r#"{"error""#) {
                bail!("QEMU refused {command}: {line}");
            }
            self.events.push(line);
        }
    }

    /// Waits for an event, which may have come before.
    pub(super) fn event(&mut self, name: &str) -> Result<()> {
        let named = format!(r#""event": "{name}""#);
        loop {
            if let Some(at) = self.events.iter().position(|event| event.contains(&named)) {
                self.events.remove(at);
                return Ok(());
            }
            let line = self.line()?;
            self.events.push(line);
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).context("QEMU does not answer")? == 0 {
            bail!("QEMU closed its control socket");
        }
        Ok(line)
    }
}
