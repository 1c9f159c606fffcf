//! Executable files that tests make: other programs write these.
//!
//! A file that is open for writing anywhere cannot be executed (ETXTBSY). A process that another thread is just starting holds all descriptors of
//! this process until it executes its program; so a file that this process has written and closed may still not be executable.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Writes an executable file.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"]).arg(path);
    let mut shell = shell.stdin(Stdio::piped()).spawn().context("cannot run sh")?;
    let sent = shell.stdin.take().context("standard input is piped")?.write_all(bytes);
    ensure!(shell.wait()?.success() && sent.is_ok(), "cannot write {}", path.display());
    Ok(())
}

/// Copies an executable file.
///
/// # Errors
/// The file cannot be read, or the copy cannot be written.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg(from).arg(to).status().context("cannot run cp")?;
    ensure!(status.success(), "cannot copy {}", from.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn what_is_written_while_others_start_programs_is_executed() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let [script, same] = ["script", "same"].map(|name| folder.path().join(name));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _ = Command::new("true").status();
                }
            });
            let made = (0..20).try_for_each(|_| {
                write(&script, b"#!/bin/sh\nexit 7\n")?;
                copy(&script, &same)?;
                for path in [&script, &same] {
                    ensure!(Command::new(path).status()?.code() == Some(7));
                }
                Ok(())
            });
            done.store(true, Ordering::Relaxed);
            made
        })
    }
}
