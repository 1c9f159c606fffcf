//! Runs one virtual machine: QEMU from the package cache, by emulation, with the daemon's sockets as its GPUs.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Pid;
use tempfile::TempDir;

use super::guest::{Guest, Script};
use super::output::Output;
use super::qmp::Qmp;
use crate::daemon::eventually;
use crate::daemon_process::daemon_executable;
use crate::packages::{PackageRoot, Suite};
use crate::program::{Background, LIMIT, succeed};

/// The properties of the machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Guest memory in MiB.
    pub memory_mib: u32,
    /// Virtual processors.
    pub processors: u32,
    /// One vhost-user GPU for each socket.
    pub gpus: Vec<PathBuf>,
    /// The machine is ended, and counts as hung, this long after its start.
    pub limit: Duration,
    /// Let the guest restart on its request, instead of ending the machine.
    pub may_reboot: bool,
    /// Copy the command's output to standard output while it runs.
    pub echo: bool,
    /// Use the processor's virtualization instead of emulating; needs a `/dev/kvm` that can run Linux guests.
    pub kvm: bool,
    /// The daemon's program that prints the recipe; that of the tests if none is named.
    pub daemon: Option<PathBuf>,
    /// Memory devices (`pc-dimm`) beside the machine's memory: a region of the memory table each.
    pub memory_devices: u32,
}

/// The time after which a machine counts as hung: some boot several times, and each boot takes minutes in emulation beside other work.
const MACHINE_LIMIT: Duration = Duration::from_secs(3600);

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_mib: 1536,
            // Processors that wait for each other by spinning are slow in emulation if the host has few processors.
            processors: 1,
            gpus: Vec::new(),
            limit: MACHINE_LIMIT,
            may_reboot: false,
            echo: false,
            kvm: false,
            daemon: None,
            memory_devices: 0,
        }
    }
}

/// The outcome of a guest's command.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The script's exit status.
    pub status: i32,
    /// Everything the script printed, both streams.
    pub output: String,
    /// The text that kernel and init printed.
    pub console: String,
}

/// A running virtual machine. Dropping it ends it.
pub struct Vm {
    child: Child,
    qmp: Option<Qmp>,
    output: Arc<Output>,
    folder: TempDir,
    started: Instant,
    limit: Duration,
}

/// A machine that prints nothing for this time while it boots hangs: a kernel prints hundreds of lines in some seconds.
const SILENCE_MAX: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(50);

impl Vm {
    /// Starts a machine that runs `script`. Returns when its first process runs.
    ///
    /// An emulated start now and then hangs somewhere in the kernel, so one start that hangs there is repeated.
    ///
    /// # Errors
    /// QEMU cannot be had, the machine died, or hung twice.
    pub fn boot(guest: &Guest, script: &Script, options: &Options) -> Result<Self> {
        let qemu = qemu()?;
        let mut vm = Self::start(&qemu, guest, script, options)?;
        if !vm.reaches_its_first_process(Duration::MAX)? {
            eprintln!(
                "vm: the guest has printed nothing for {} s, starting once more",
                SILENCE_MAX.as_secs()
            );
            drop(vm);
            vm = Self::start(&qemu, guest, script, options)?;
            if !vm.reaches_its_first_process(Duration::MAX)? {
                bail!("the guest does not boot\n{}", vm.evidence());
            }
        }
        Ok(vm)
    }

    /// Gets QEMU, unless that was done before.
    ///
    /// # Errors
    /// QEMU cannot be had.
    pub fn get_ready() -> Result<()> {
        qemu().map(drop)
    }

    /// Boots, waits for the end of the script and returns its outcome.
    ///
    /// # Errors
    /// As [`Vm::boot`] and [`Vm::wait`].
    pub fn run(guest: &Guest, script: &Script, options: &Options) -> Result<Outcome> {
        Self::boot(guest, script, options)?.wait()
    }

    /// Finds out whether machines with these options run on this host: one boots once, and its first program ends, both within the limit.
    ///
    /// # Errors
    /// QEMU cannot be had.
    pub fn works(guest: &Guest, options: &Options) -> Result<bool> {
        let qemu = qemu()?;
        let mut vm = Self::start(&qemu, guest, &Script::new("true"), options)?;
        let boots = vm.reaches_its_first_process(options.limit).unwrap_or(false);
        Ok(boots && vm.wait().is_ok_and(|outcome| outcome.status == 0))
    }

    /// QEMU's process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the end of the script.
    ///
    /// # Errors
    /// The machine reached its time limit or died; the message holds the end of its output.
    pub fn wait(mut self) -> Result<Outcome> {
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if self.started.elapsed() > self.limit {
                bail!("the guest did not end within {} s\n{}", self.limit.as_secs(), self.evidence());
            }
            thread::sleep(POLL);
        };
        match status.code() {
            // The exit device makes QEMU end with an odd status.
            Some(code) if code & 1 == 1 && self.console().contains("init: the command ended") => {
                let output = self.output.until_end();
                Ok(Outcome { status: code >> 1, output, console: self.console() })
            }
            _ => bail!("the machine died ({status})\n{}", self.evidence()),
        }
    }

    /// Waits until the command has printed `text`, looking from byte `from` on; returns the offset behind it.
    ///
    /// # Errors
    /// `limit` passed, or the machine ended.
    pub fn wait_for(&self, text: &str, from: usize, limit: Duration) -> Result<usize> {
        match self.output.wait_for(text, from, limit) {
            Some(end) => Ok(end),
            None => {
                bail!("the guest did not print {text:?} within {} s\n{}", limit.as_secs(), self.evidence())
            }
        }
    }

    /// Sends a line to the command's standard input.
    ///
    /// # Errors
    /// The machine has ended.
    pub fn send_line(&mut self, line: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("standard input is piped")?;
        writeln!(stdin, "{line}").context("the machine has ended")
    }

    /// Gives the command the bytes of `input` as its standard input, until the machine ends. [`Vm::send_line`] can send nothing then.
    ///
    /// # Errors
    /// The command has got an input before.
    pub fn feed(&mut self, mut input: impl Read + Send + 'static) -> Result<()> {
        let mut stdin = self.child.stdin.take().context("the command has an input already")?;
        thread::spawn(move || io::copy(&mut input, &mut stdin));
        Ok(())
    }

    /// Executes a command of QEMU's machine protocol: `stop`, `cont`, `system_reset`, `quit`.
    ///
    /// # Errors
    /// QEMU refused, does not answer, or has ended.
    pub fn qmp(&mut self, command: &str) -> Result<()> {
        self.control().and_then(|control| control.execute(command)).map_err(|error| {
            // A machine that does not answer may be dying.
            thread::sleep(Duration::from_secs(1));
            let end = self
                .child
                .try_wait()
                .ok()
                .flatten()
                .map_or("running".to_owned(), |status| status.to_string());
            error.context(format!("{command}; the machine: {end}\n{}", self.evidence()))
        })
    }

    /// Executes a command of QEMU's machine protocol, given as a whole line with its arguments.
    ///
    /// # Errors
    /// As [`Vm::qmp`].
    pub fn qmp_line(&mut self, line: &str) -> Result<()> {
        let done = self.control().and_then(|control| control.send(line));
        done.map_err(|error| error.context(format!("{line}\n{}", self.evidence())))
    }

    /// Waits until QEMU has announced an event that no earlier call has waited for.
    ///
    /// # Errors
    /// QEMU has ended, or does not announce it.
    pub fn qmp_event(&mut self, name: &str) -> Result<()> {
        let heard = self.control().and_then(|control| control.event(name));
        heard.map_err(|error| error.context(format!("waiting for {name}\n{}", self.evidence())))
    }

    /// One connection for the machine's life: QEMU does not listen while it has one, and for a moment after.
    fn control(&mut self) -> Result<&mut Qmp> {
        if self.qmp.is_none() {
            self.qmp = Some(Qmp::connect(&self.folder.path().join("qmp"))?);
        }
        self.qmp.as_mut().context("just connected")
    }

    /// Kills the machine without warning.
    ///
    /// # Errors
    /// The machine had ended before.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("the machine had ended")?;
        self.child.wait()?;
        Ok(())
    }

    /// Returns the command's output so far.
    #[must_use]
    pub fn output(&self) -> String {
        self.output.so_far()
    }

    /// Returns the output of kernel and init so far, and QEMU's own messages.
    #[must_use]
    pub fn console(&self) -> String {
        let read = |name| fs::read(self.folder.path().join(name)).unwrap_or_default();
        let bytes = [read("console"), read("qemu.log")].concat();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    fn start(qemu: &PackageRoot, guest: &Guest, script: &Script, options: &Options) -> Result<Self> {
        let folder = TempDir::new()?;
        let initramfs = folder.path().join("initramfs");
        guest.write_initramfs(script, &initramfs)?;
        let messages = File::create(folder.path().join("qemu.log"))?;
        let mut child = qemu_command(qemu, guest, folder.path(), options)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(messages)
            .spawn()
            .context("cannot start QEMU")?;
        let stdout = child.stdout.take().context("standard output is piped")?;
        let output = Output::collect(stdout, options.echo);
        Ok(Self { child, qmp: None, output, folder, started: Instant::now(), limit: options.limit })
    }

    /// Waits for the first process. Returns false if the kernel falls silent, or `limit` is over.
    fn reaches_its_first_process(&mut self, limit: Duration) -> Result<bool> {
        let (mut printed, mut last) = (0, Instant::now());
        while last.elapsed() < SILENCE_MAX && self.started.elapsed() < limit {
            let console = self.console();
            if console.contains("init: kernel") {
                return Ok(true);
            }
            if console.len() > printed {
                (printed, last) = (console.len(), Instant::now());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the machine died while booting ({status})\n{}", self.evidence());
            }
            thread::sleep(POLL);
        }
        Ok(false)
    }

    /// The last lines of all output, for an error message.
    fn evidence(&self) -> String {
        let (console, output) = (self.console(), self.output.so_far());
        format!("--- console:\n{}\n--- output:\n{}", last_lines(&console, 40), last_lines(&output, 40))
    }
}

/// Gets QEMU, unless that was done before.
fn qemu() -> Result<PackageRoot> {
    PackageRoot::with(Suite::Testing, &["qemu-system-x86"])
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn qemu_command(qemu: &PackageRoot, guest: &Guest, folder: &Path, options: &Options) -> Result<Command> {
    let mut command = bare(qemu)?;
    command.args(if options.kvm {
        ["-accel", "kvm", "-cpu", "host"]
    } else {
        ["-accel", "tcg", "-cpu", "max"]
    });
    command.args(["-smp", &options.processors.to_string()]);
    command.args(["-m", &format!("{}M", options.memory_mib)]);
    command.arg("-kernel").arg(guest.kernel()).arg("-initrd").arg(folder.join("initramfs"));
    // On a busy host an emulated timer may be too late for the kernel's timer check, which then panics.
    command.args(["-append", "console=ttyS0 panic=-1 no_timer_check"]);
    command.args(["-serial", &format!("file:{}", folder.join("console").display()), "-serial", "stdio"]);
    command.args(["-qmp", &format!("unix:{},server=on,wait=off", folder.join("qmp").display())]);
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1"]);
    if !options.may_reboot {
        command.arg("-no-reboot");
    }
    for (index, socket) in options.gpus.iter().enumerate() {
        let arguments = recipe(socket, options)?;
        // Memory once, and a name of its own for each device.
        let device = arguments.iter().position(|argument| argument == "-chardev").context("no device")?;
        let (memory, device) = arguments.split_at(device);
        command.args(if index == 0 { memory } else { &[] });
        let own = |argument: &String| {
            let named = argument.replace(NAME, &format!("{NAME}-{index}"));
            named.replace(&chassis(0), &chassis(index))
        };
        command.args(device.iter().map(|argument| if index == 0 { argument.clone() } else { own(argument) }));
    }
    command.args(memory_devices(options.memory_devices));
    Ok(command)
}

/// The arguments for `count` memory devices of 16 MiB, and for their places.
fn memory_devices(count: u32) -> Vec<String> {
    let device = |index| {
        let backend = format!("memory-backend-memfd,id=more{index},size=16M,share=on");
        ["-object".to_owned(), backend, "-device".to_owned(), format!("pc-dimm,memdev=more{index}")]
    };
    let place = ["-m".to_owned(), format!("slots={count},maxmem=64G")];
    if count == 0 { Vec::new() } else { place.into_iter().chain((0..count).flat_map(device)).collect() }
}

/// The beginning of the ids of the device, its connection and its port in the recipe.
const NAME: &str = "=vhost-user-vulkan";

/// The chassis of a device's port; that of the recipe is the first one's.
fn chassis(index: usize) -> String {
    format!("chassis={}", 240 + index)
}

/// The arguments by which users attach a VM, according to the daemon's recipe.
fn recipe(socket: &Path, options: &Options) -> Result<Vec<String>> {
    let mut command = Command::new(options.daemon.clone().map_or_else(daemon_executable, Ok)?);
    let memory = format!("{}MiB", options.memory_mib);
    command.args(["recipe", "qemu", "--memory", &memory, "--socket-path"]).arg(socket);
    Ok(succeed(command, LIMIT)?.split_whitespace().map(str::to_owned).collect())
}

/// QEMU without devices.
fn bare(qemu: &PackageRoot) -> Result<Command> {
    let mut command = qemu.command("qemu-system-x86_64")?;
    command.env("QEMU_MODULE_DIR", qemu.libraries().join("qemu"));
    command.arg("-L").arg(qemu.path("usr/share/qemu")).arg("-L").arg(qemu.path("usr/share/seabios"));
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-M", "q35"]);
    Ok(command)
}

/// Has QEMU make a machine with these arguments, without running it, and end.
///
/// # Errors
/// QEMU refuses them.
pub fn accepts(arguments: &[String]) -> Result<()> {
    let qemu = qemu()?;
    let folder = TempDir::new()?;
    let socket = folder.path().join("qmp");
    let mut command = bare(&qemu)?;
    command.args(["-accel", "tcg", "-S", "-qmp", &format!("unix:{},server=on,wait=off", socket.display())]);
    let mut machine = Background::start({
        command.args(arguments);
        command
    })?;
    let ready = eventually(LIMIT, || socket.exists() || !machine.is_running());
    ensure!(ready && machine.is_running(), "QEMU refuses {arguments:?}: {}", machine.errors());
    let said = Qmp::connect(&socket).and_then(|mut qmp| {
        qmp.execute("query-status")?;
        qmp.execute("quit")
    });
    let status = machine.wait(LIMIT)?;
    said.with_context(|| format!("{arguments:?}: {}", machine.errors()))?;
    ensure!(status.success() && machine.errors().is_empty(), "{status}: {}", machine.errors());
    Ok(())
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
