//! Programs of the system, run to read their output. The wait for a program and the bytes read from it are limited.

use crate::system::System;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The time that a program has.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// The most bytes that are read of a program's output.
const ANSWER_BYTES: usize = 1 << 20;

/// Returns the path of a program in the search path.
pub(crate) fn in_path(system: &System, program: &str) -> Option<PathBuf> {
    let folders = system.variable("PATH")?.split(':');
    let paths = folders.filter_map(|folder| std::path::absolute(Path::new(folder).join(program)).ok());
    paths.map(|path| system.path(path)).find(|path| path.is_file())
}

/// Returns a program's output, at most the first MiB. A program that fails or takes too long is an error, unless it fails after the first MiB.
pub(crate) fn said(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let Some(output) = child.stdout.take() else { return Err("it has no output".into()) };
    let (answer, answered) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.take(ANSWER_BYTES as u64).read_to_end(&mut bytes);
        // If the program took too long, the caller does not wait any more.
        let _ = answer.send(read.map(|_| String::from_utf8_lossy(&bytes).into_owned()));
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(POLL),
            Ok(Some(status)) => break status,
            // The program has not ended, or the system cannot tell: the wait ends here.
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it does not answer within {} s", PATIENCE.as_secs()));
            }
        }
    };
    // A process that the program started may hold its output, and go on.
    match answered.recv_timeout(PATIENCE) {
        Ok(Ok(text)) if status.success() || text.len() >= ANSWER_BYTES => Ok(text),
        _ if !status.success() => Err(format!("it ends with {status}")),
        _ => Err("its output cannot be read".into()),
    }
}
