//! The VMMs of a host, asked what they can do.

use crate::system::System;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time that a program has to say what it can do.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// Most bytes of an answer.
const ANSWER_BYTES: u64 = 1 << 20;

/// The device by which QEMU carries a vhost-user GPU with a window.
pub(super) const DEVICE: &str = "vhost-user-test-device-pci";

/// A QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// The path of the program.
    pub path: PathBuf,
    /// The version, or why it does not say.
    pub version: Result<String, String>,
    /// The device is there.
    pub has_device: bool,
}

/// A crosvm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crosvm {
    /// The path of the program.
    pub path: PathBuf,
    /// The program has the option `--vhost-user`.
    pub has_vhost_user: bool,
}

/// Finds QEMU: the one named, or else that of the search path.
pub(super) fn qemu(system: &System, named: Option<&Path>) -> Option<Qemu> {
    let program = format!("qemu-system-{}", std::env::consts::ARCH);
    let path = named.map(Path::to_owned).or_else(|| in_path(system, &program))?;
    let version = said(&path, &["--version"]).and_then(|text| {
        let word = text
            .lines()
            .next()
            .and_then(|line| line.split_once("version "))
            .map(|(_, rest)| rest.split(' ').next());
        word.flatten()
            .map(str::to_owned)
            .ok_or_else(|| format!("it says {:?}", text.lines().next().unwrap_or_default()))
    });
    let has_device = version.is_ok()
        && said(&path, &["-device", &format!("{DEVICE},help")]).is_ok_and(|text| text.contains("virtio-id"));
    Some(Qemu { path, version, has_device })
}

/// Finds crosvm in the search path.
pub(super) fn crosvm(system: &System) -> Option<Crosvm> {
    let path = in_path(system, "crosvm")?;
    let has_vhost_user = said(&path, &["run", "--help"]).is_ok_and(|text| text.contains("--vhost-user"));
    Some(Crosvm { path, has_vhost_user })
}

fn in_path(system: &System, program: &str) -> Option<PathBuf> {
    let folders = system.variable("PATH")?.split(':');
    let paths = folders.filter_map(|folder| std::path::absolute(Path::new(folder).join(program)).ok());
    paths.map(|path| system.path(path)).find(|path| path.is_file())
}

/// Returns what a program prints, unless it fails or takes too long.
fn said(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let Some(output) = child.stdout.take() else { return Err("it has no output".into()) };
    let (answer, answered) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.take(ANSWER_BYTES).read_to_end(&mut bytes);
        // Nobody waits for it any more if it took too long.
        let _ = answer.send(read.map(|_| String::from_utf8_lossy(&bytes).into_owned()));
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(POLL),
            Ok(Some(status)) => break status,
            // It has not ended, or nobody knows: it is not waited for any longer.
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it does not answer within {} s", PATIENCE.as_secs()));
            }
        }
    };
    if !status.success() {
        return Err(format!("it ends with {status}"));
    }
    // A process of its own may have its output, and go on.
    match answered.recv_timeout(PATIENCE) {
        Ok(Ok(text)) => Ok(text),
        _ => Err("its output cannot be read".into()),
    }
}
