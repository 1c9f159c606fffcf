//! `cargo demo`: a stock Debian guest computes on the daemon's virtual GPU.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tests::daemon_process::{DaemonProcess, build_daemon};
use tests::packages::{HostVulkan, Suite};
use tests::vm::{Guest, Options, Outcome, Vm};
use tests::{completion, prerequisites};

#[derive(Parser)]
#[command(about = "Boot a stock Debian guest and let it compute on a virtual GPU")]
struct Arguments {
    /// Debian suite of the guest
    #[arg(long, default_value = "testing")]
    guest: Suite,
    /// Use this GPU of the machine (`vhost-user-vulkan --list-gpus`); the default is a software driver
    #[arg(long)]
    gpu: Option<String>,
    /// Use KVM instead of emulation
    #[arg(long)]
    kvm: bool,
    /// Leave a shell in the guest, on this terminal, until it exits
    #[arg(long)]
    keep: bool,
    /// Show what the daemon logs
    #[arg(long)]
    log: bool,
}

const WORDS: u32 = 48;

/// Prints what llama.cpp has measured.
const MEASURED: &str = r"echo
echo '--- measured by llama.cpp in the guest'
sed -n 's/.*[a-z_]*: *\(.*eval time\)/\1/p' /tmp/log";

/// Time that a guest without a shell has.
const LIMIT: Duration = Duration::from_secs(600);
/// Time that a guest with one has.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(!arguments.keep || io::stdin().is_terminal(), "--keep needs a terminal for the guest's shell");
    let started = Instant::now();
    let step = |text: &str| println!("[{:5.1} s] {text}", started.elapsed().as_secs_f32());

    step("checking what this machine has");
    prerequisites::provide(prerequisites::PACKAGES)?;
    step("building the daemon (minutes when it is the first time)");
    let executable = build_daemon(true)?;
    step("getting Debian packages: QEMU, kernel, Mesa, llama.cpp (300 MB when it is the first time)");
    let guest = Guest::build(arguments.guest).context("cannot build the guest")?;
    let (vulkan, selection) = match &arguments.gpu {
        Some(gpu) => (HostVulkan::System, vec!["--gpu", gpu]),
        None => (HostVulkan::lavapipe()?, Vec::new()),
    };
    step("starting the daemon");
    let daemon = DaemonProcess::start_executable(&executable, &vulkan, &selection)?;

    step(&format!("booting {} with kernel {}", guest.suite().name(), guest.kernel_release()));
    let before = "echo '--- vulkaninfo --summary'\nvulkaninfo --summary 2>/dev/null | sed -n '/^GPU0/,$p'";
    let after = if arguments.keep { format!("{MEASURED}\n{}", shell()?) } else { MEASURED.to_owned() };
    let script = completion::script_then(before, WORDS, &after);
    let options = Options {
        gpus: vec![daemon.socket()],
        echo: true,
        kvm: arguments.kvm,
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
    step("done: the words above were computed on the guest's virtual GPU");
    Ok(())
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

/// This terminal while it passes each key on, Ctrl-C too. Dropping it gives the terminal back as it was.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // Lines of ours go on to end as they did.
        raw.output_modes = before.output_modes;
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
