//! A broker with several VMs as behaviour tests see it: a configuration, sockets, and the output of its own subcommands.

use crate::bridge::Bridge;
use crate::daemon::{self, eventually, is_alive};
use crate::daemon_process::daemon_executable;
use crate::frontend::{Options, Session};
use crate::guest::{Gpu, PATIENCE};
use crate::packages::HostVulkan;
use crate::program::end_of;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A device process that takes longer to listen hangs; an emulated machine on a busy host takes long.
const START: Duration = Duration::from_secs(300);

/// The system's message for an answer that does not arrive in time (EAGAIN).
const NO_ANSWER: &str = "(os error 11)";

/// A running broker. When it is dropped it is killed, and its log, with that of its VMs, is printed, which shows if the test fails.
pub struct Broker {
    child: Child,
    folder: TempDir,
    defaults: String,
}

impl Broker {
    /// Starts the broker with a VM of each of these names, `top` before their tables and `keys` in each. Returns when all of them listen.
    ///
    /// # Errors
    /// The broker refuses the file, or a VM does not listen.
    pub fn start(top: &str, vms: &[(&str, &str)]) -> Result<Self> {
        let gpu = daemon::gpu_selection().map(|gpu| format!("gpu = {gpu:?}\n"));
        Self::start_by(vhost_user_vulkan()?, top, &gpu.unwrap_or_default(), vms)
    }

    /// Starts the broker like [`Self::start`], on these drivers and with `defaults` for all VMs.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_on(vulkan: &HostVulkan, top: &str, defaults: &str, vms: &[(&str, &str)]) -> Result<Self> {
        Self::start_by(vulkan.command(&daemon_executable()?)?, top, defaults, vms)
    }

    /// Starts the broker like [`Self::start`], by a command that runs the daemon.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_command(command: Command, top: &str, vms: &[(&str, &str)]) -> Result<Self> {
        let gpu = daemon::gpu_selection().map(|gpu| format!("gpu = {gpu:?}\n"));
        Self::start_by(command, top, &gpu.unwrap_or_default(), vms)
    }

    fn start_by(command: Command, top: &str, defaults: &str, vms: &[(&str, &str)]) -> Result<Self> {
        let broker = Self::begin(command, top, defaults, vms)?;
        for (name, _) in vms {
            let listens = || broker.listens(name) || !broker.is_running();
            let started = eventually(START, listens) && broker.is_running();
            ensure!(started, "{name} does not listen\n{}", broker.log());
        }
        Ok(broker)
    }

    /// Starts the broker like [`Self::start_command`], and does not wait until VMs listen.
    ///
    /// # Errors
    /// The broker cannot be started.
    pub fn start_without_waiting(command: Command, top: &str, vms: &[(&str, &str)]) -> Result<Self> {
        Self::begin(command, top, "", vms)
    }

    fn begin(mut command: Command, top: &str, defaults: &str, vms: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        write_config(folder.path(), top, defaults, vms)?;
        // Writes in append mode go to the end of the file, even after a test has truncated it.
        let log = File::options().append(true).create(true).open(folder.path().join("log"))?;
        command.arg("--config").arg(folder.path().join("config"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("cannot start the broker")?;
        Ok(Self { child, folder, defaults: defaults.to_owned() })
    }

    /// Writes the configuration anew, which the broker does not notice by itself. A VM's `socket-path` is made of its name, unless its keys
    /// have one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn rewrite(&self, top: &str, vms: &[(&str, &str)]) -> Result<()> {
        write_config(self.folder.path(), top, &self.defaults, vms)
    }

    /// A file in its folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns whether a VM's socket is there and its device process waits at it.
    #[must_use]
    pub fn listens(&self, vm: &str) -> bool {
        let vm = self.status().ok().and_then(|status| find(&status["vms"], "name", &vm.into()).cloned());
        vm.is_some_and(|vm| vm["state"] == "waiting")
    }

    /// A guest of a VM, with a bridge for its programs, which connect at the path that is returned.
    ///
    /// # Errors
    /// The device process refuses it.
    pub fn bridge(&self, vm: &str) -> Result<(Bridge, PathBuf)> {
        let path = self.path(&format!("{vm}.vtest"));
        let guest = Gpu::new(Session::connect(&self.path(vm), Options::default())?);
        Ok((Bridge::listen(&path, guest)?, path))
    }

    /// Runs a subcommand against the broker.
    ///
    /// # Errors
    /// The subcommand cannot be run.
    pub fn operate(&self, arguments: &[&str]) -> Result<Output> {
        operate(&self.path("control"), arguments)
    }

    /// Runs a subcommand like [`Self::operate`], which has to succeed. Returns the subcommand's output.
    ///
    /// # Errors
    /// The subcommand fails.
    pub fn say(&self, arguments: &[&str]) -> Result<String> {
        say(&self.path("control"), arguments)
    }

    /// The broker's status.
    ///
    /// # Errors
    /// The broker does not answer.
    pub fn status(&self) -> Result<Value> {
        let (mut said, mut answers) = (self.operate(&["status", "--json"])?, 1);
        // The operator's command waits less long than tests: a broker that gets no processor time is asked again.
        while String::from_utf8_lossy(&said.stderr).contains(NO_ANSWER) && answers < 30 {
            (said, answers) = (self.operate(&["status", "--json"])?, answers + 1);
        }
        let errors = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "status: {}: {errors}", said.status);
        Ok(serde_json::from_slice(&said.stdout)?)
    }

    /// The status of a VM.
    ///
    /// # Errors
    /// There is no such VM.
    pub fn vm(&self, name: &str) -> Result<Value> {
        let status = self.status()?;
        find(&status["vms"], "name", &name.into()).cloned().with_context(|| format!("no {name} in {status}"))
    }

    /// The device process of a VM.
    ///
    /// # Errors
    /// The VM has none.
    pub fn device(&self, vm: &str) -> Result<Pid> {
        let pid = self.vm(vm)?["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
        pid.with_context(|| format!("{vm} has no device process"))
    }

    /// The broker's metrics at this port.
    ///
    /// # Errors
    /// The metrics are not served.
    pub fn metrics(&self, port: u16) -> Result<String> {
        metrics(port)
    }

    /// Asks the broker to end with SIGTERM, and waits.
    ///
    /// # Errors
    /// The broker does not end.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        end_of(&mut self.child, PATIENCE)?.with_context(|| format!("it does not end\n{}", self.log()))
    }

    /// The broker's process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns whether the broker runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        is_alive(self.pid())
    }

    /// The messages that the broker and its VMs have logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        println!("the broker's log:\n{}", self.log());
    }
}

fn write_config(folder: &Path, top: &str, defaults: &str, vms: &[(&str, &str)]) -> Result<()> {
    let path = |name: &str| folder.join(name).display().to_string();
    let mut file = format!("control-socket = \"{}\"\n{top}\n", path("control"));
    // A busy machine's software driver is slow, and so is the frontend of a test; tests about hangs set shorter limits in a VM's keys.
    file += "[defaults]\n";
    for key in ["max-submit-time", "max-submit-time-contended", "frontend-timeout", "driver-timeout"] {
        file += &format!("{key} = \"60min\"\n");
    }
    file += &format!("{defaults}\n");
    for (name, keys) in vms {
        file += &format!("[vm.{name}]\n{keys}\n");
        if !keys.contains("socket-path") {
            file += &format!("socket-path = \"{}\"\n", path(name));
        }
    }
    // The file is replaced in one step, because the broker may be reading the old file.
    fs::write(folder.join("config.new"), &file)?;
    Ok(fs::rename(folder.join("config.new"), folder.join("config"))?)
}

/// Runs a subcommand against the daemon that listens for operators at `control`.
///
/// # Errors
/// The subcommand cannot be run.
pub fn operate(control: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = vhost_user_vulkan()?;
    command.args(arguments).arg("--control-socket").arg(control);
    Ok(command.stdin(Stdio::null()).output()?)
}

/// Runs a subcommand like [`operate`], which has to succeed. Returns the subcommand's output.
///
/// # Errors
/// The subcommand fails.
pub fn say(control: &Path, arguments: &[&str]) -> Result<String> {
    let output = operate(control, arguments)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {}: {errors}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The metrics of a daemon at this port.
///
/// # Errors
/// The metrics are not served.
pub fn metrics(port: u16) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, text) = answer.split_once("\r\n\r\n").context("no body")?;
    ensure!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    Ok(text.to_owned())
}

/// The program, on the driver under test, without options.
///
/// # Errors
/// It does not build.
pub fn vhost_user_vulkan() -> Result<Command> {
    let mut command = daemon::bare_command()?;
    command.stdin(Stdio::null());
    Ok(command)
}

/// Returns the first entry of a list that has this value at this key.
#[must_use]
pub fn find<'a>(list: &'a Value, key: &str, value: &Value) -> Option<&'a Value> {
    list.as_array()?.iter().find(|entry| entry[key] == *value)
}

/// Returns the message with which the program refuses to start with a configuration file.
///
/// # Errors
/// The program cannot be run, or starts.
pub fn refused(arguments: &[&str], file: &Path) -> Result<String> {
    let output = vhost_user_vulkan()?.args(arguments).arg("--config").arg(file).output()?;
    ensure!(output.status.code() == Some(1), "{}", output.status);
    Ok(String::from_utf8(output.stderr)?)
}
