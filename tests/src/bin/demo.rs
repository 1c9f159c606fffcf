//! `cargo demo`: llama.cpp computes in a stock Debian guest on the daemon's virtual GPU. The program looks for a GPU and KVM, and names its choice at
//! the end.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tests::daemon_process::{DaemonProcess, build_daemon};
use tests::packages::{HostVulkan, Suite, cache_dir};
use tests::vm::{Guest, Options, Outcome, Vm};
use tests::{completion, prerequisites};

#[derive(Parser)]
#[command(about = "Boot a stock Debian guest and let it compute on a virtual GPU")]
struct Arguments {
    /// Debian suite of the guest
    #[arg(long, default_value = "testing")]
    guest: Suite,
    /// Use this GPU of the machine (`vhost-user-vulkan --list-gpus`); the default is the first that guests can use, otherwise a software driver
    #[arg(long, conflicts_with = "software")]
    gpu: Option<String>,
    /// Use a software driver although the machine has a GPU
    #[arg(long)]
    software: bool,
    /// Use KVM without trying it out before; the default is KVM if a guest boots with it, otherwise emulation
    #[arg(long, conflicts_with = "emulate")]
    kvm: bool,
    /// Emulate the guest's processor although the machine has KVM
    #[arg(long)]
    emulate: bool,
    /// Leave a shell in the guest, on this terminal, until it exits
    #[arg(long)]
    keep: bool,
    /// Show the daemon's log
    #[arg(long)]
    log: bool,
    /// Use this daemon instead of building one
    #[arg(long)]
    daemon: Option<PathBuf>,
}

const WORDS: u32 = 48;

/// Announces the next step, and shows the guest's GPU.
const BEFORE: &str = r"echo '--- vulkaninfo --summary'
vulkaninfo --summary 2>/dev/null | sed -n '/^GPU0/,$p'
echo
echo 'llama.cpp speaks with a model of random weights, made for this demo: its words are invented and mean nothing'";

/// Time that a guest without a shell has.
const LIMIT: Duration = Duration::from_secs(600);
/// Time that a guest with a shell has.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time that a guest has to boot and end with KVM; two or three seconds are usual.
const KVM_LIMIT: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(!arguments.keep || io::stdin().is_terminal(), "--keep needs a terminal for the guest's shell");
    let started = Instant::now();
    let step = |text: &str| println!("[{:5.1} s] {text}", started.elapsed().as_secs_f32());

    step("checking what this machine has");
    prerequisites::provide(prerequisites::PACKAGES)?;
    let compiled = Compiled::choose(&arguments);
    step(&format!(
        "getting QEMU, a kernel, Mesa and llama.cpp as Debian packages, which are kept in {} and not installed (when it is the first \
         time: 250 MB to fetch, up to 1.5 GB of the disk)",
        cache_dir()?.display()
    ));
    // The network is slow, the compiler needs the processors.
    let (executable, guest) = thread::scope(|scope| {
        let guest = scope.spawn(|| fetched(arguments.guest, &compiled));
        (compiled.executable(step), guest.join())
    });
    let (executable, guest) = (executable?, guest.map_err(|_| anyhow!("the guest's thread panicked"))??);
    let device = Device::choose(&arguments, &executable)?;
    let processor = Processor::choose(&arguments, &guest, step)?;
    step(&format!("starting the daemon on {}", device.name));
    let daemon = DaemonProcess::start_executable(&executable, &device.vulkan, &device.selection())?;

    step(&format!(
        "booting {} with kernel {} by {}",
        guest.suite().name(),
        guest.kernel_release(),
        processor.name()
    ));
    let measured = measured(&compiled);
    let after = if arguments.keep { format!("{measured}\n{}", shell()?) } else { measured };
    let script = completion::script_then(BEFORE, WORDS, &after);
    let options = Options {
        gpus: vec![daemon.socket()],
        echo: true,
        kvm: processor == Processor::Kvm,
        limit: if arguments.keep { KEPT } else { LIMIT },
        daemon: Some(executable),
        ..Options::default()
    };
    let ends = || -> Result<Outcome> {
        let mut vm = Vm::boot(&guest, &script, &options)?;
        step("the guest runs");
        let _typed_through = arguments.keep.then(Raw::enter).transpose()?;
        if arguments.keep {
            vm.feed(io::stdin())?;
        }
        vm.wait()
    };
    let outcome = ends().with_context(|| format!("the daemon logged:\n{}", daemon.log()))?;
    println!();
    ensure!(outcome.status == 0, "the guest's command failed; the daemon logged:\n{}", daemon.log());

    step("stopping the daemon");
    let log = daemon.stop()?;
    if arguments.log {
        println!("{log}");
    }
    ensure!(
        outcome.output.contains("Virtio-GPU Venus"),
        "the guest saw no Venus device; the daemon logged:\n{log}"
    );
    step(&format!("done: the words above were computed on {}, in a VM by {}", device.name, processor.name()));
    for hint in [device.hint(), processor.hint(), compiled.hint()].into_iter().flatten() {
        println!("{hint}");
    }
    Ok(())
}

/// Gets all packages that the demo needs, and makes the guest of them.
fn fetched(suite: Suite, compiled: &Compiled) -> Result<Arc<Guest>> {
    let guest = Guest::build(suite).context("cannot build the guest")?;
    Vm::get_ready()?;
    if compiled.is_slow() {
        HostVulkan::lavapipe()?;
    }
    Ok(guest)
}

/// Returns the commands that print the measurements of llama.cpp, which depend on the daemon's speed.
fn measured(compiled: &Compiled) -> String {
    let caveat = if compiled.is_slow() { ", with a daemon compiled without optimization" } else { "" };
    format!(
        r"echo
echo '--- measured by llama.cpp in the guest{caveat}'
sed -n 's/.*[a-z_]*: *\(.*eval time\)/\1/p' /tmp/log"
    )
}

/// The way in which the daemon is compiled.
enum Compiled {
    /// The user has compiled it, or installed it.
    Before(PathBuf),
    /// In the profile of the demo, which shares most crates with it, and without optimization: a software driver takes most of the time itself.
    Quickly,
    /// In the profile that users have, for a GPU.
    Optimized,
}

impl Compiled {
    fn choose(arguments: &Arguments) -> Self {
        let wants_gpu = arguments.gpu.is_some() || !arguments.software && prerequisites::has_gpu();
        match &arguments.daemon {
            Some(executable) => Self::Before(executable.clone()),
            None if wants_gpu => Self::Optimized,
            None => Self::Quickly,
        }
    }

    /// Compiles the daemon, unless the user has done this before.
    fn executable(&self, step: impl Fn(&str)) -> Result<PathBuf> {
        match self {
            Self::Before(executable) => Ok(executable.clone()),
            Self::Quickly => {
                step("building the daemon without optimization (it takes a while the first time)");
                build_daemon(false)
            }
            Self::Optimized => {
                step("building the daemon (minutes when it is the first time)");
                build_daemon(true)
            }
        }
    }

    fn is_slow(&self) -> bool {
        matches!(self, Self::Quickly)
    }

    fn hint(&self) -> Option<&'static str> {
        let hint = "--daemon target/release/vhost-user-vulkan, which `cargo build --release` makes, runs the daemon that users have: this one was compiled without optimization";
        self.is_slow().then_some(hint)
    }
}

/// The device on which the guest's programs compute.
struct Device {
    vulkan: HostVulkan,
    /// The value of the daemon's option `--gpu`; a software driver needs none, as the daemon finds no other.
    gpu: Option<String>,
    name: String,
}

impl Device {
    /// Takes the GPU that was asked for, or the first of the machine that guests can use, or a software driver.
    fn choose(arguments: &Arguments, executable: &Path) -> Result<Self> {
        let on_machine = |gpu: String, name| Self { vulkan: HostVulkan::System, gpu: Some(gpu), name };
        if let Some(gpu) = &arguments.gpu {
            return Ok(on_machine(gpu.clone(), format!("the GPU {gpu}")));
        }
        // A machine without a driver has no GPU.
        let gpus = if arguments.software {
            Vec::new()
        } else {
            HostVulkan::System.usable_gpus(executable).unwrap_or_default()
        };
        if let Some(gpu) = gpus.into_iter().find(|gpu| !gpu.software) {
            return Ok(on_machine(gpu.uuid, format!("the GPU {}", gpu.name)));
        }
        let name = "a software driver (lavapipe, which computes on the processor)".to_owned();
        Ok(Self { vulkan: HostVulkan::lavapipe()?, gpu: None, name })
    }

    fn selection(&self) -> Vec<&str> {
        self.gpu.iter().flat_map(|gpu| ["--gpu", gpu]).collect()
    }

    fn hint(&self) -> Option<&'static str> {
        let hint = "--gpu GPU computes on a GPU of this machine: `vhost-user-vulkan --list-gpus` lists them";
        self.gpu.is_none().then_some(hint)
    }
}

/// The way in which the guest's processor is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processor {
    Kvm,
    Emulated,
}

impl Processor {
    /// Takes the requested accelerator, otherwise KVM if a guest boots with it.
    fn choose(arguments: &Arguments, guest: &Guest, step: impl Fn(&str)) -> Result<Self> {
        let may_try = !arguments.emulate && prerequisites::may_have_kvm();
        if arguments.kvm || !may_try {
            return Ok(if arguments.kvm { Self::Kvm } else { Self::Emulated });
        }
        step("trying KVM");
        let options = Options { kvm: true, limit: KVM_LIMIT, ..Options::default() };
        if Vm::works(guest, &options)? {
            return Ok(Self::Kvm);
        }
        step("the guest does not boot with this machine's KVM, so its processor is emulated");
        Ok(Self::Emulated)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Emulated => "emulation of its processor",
        }
    }

    fn hint(self) -> Option<&'static str> {
        (self == Self::Emulated)
            .then_some("--kvm uses KVM, for a /dev/kvm that runs Linux guests: it is many times as fast")
    }
}

/// Returns the commands that leave a shell on the guest's terminal, which gets the size of this one.
fn shell() -> Result<String> {
    let size = tcgetwinsize(io::stdin())?;
    // A terminal may not know its size.
    let (rows, columns) = (size.ws_row, size.ws_col);
    let size = if rows > 0 { format!("rows {rows} cols {columns}") } else { String::new() };
    Ok(format!(
        "echo
echo '--- a shell in the guest: vulkaninfo, llama-completion -m /model.gguf; exit ends the guest'
stty -F /dev/ttyS1 sane {size}
PS1='guest# ' TERM=linux setsid -c sh -i"
    ))
}

/// This terminal while it passes each key on, Ctrl-C too. Dropping the value restores the terminal's settings.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // The terminal still ends this program's lines as before.
        raw.output_modes = before.output_modes;
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The terminal may no longer exist.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
