//! `cargo demo`: a stock Debian guest computes on the daemon's virtual GPU.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tests::daemon_process::{DaemonProcess, build_daemon};
use tests::packages::{HostVulkan, Suite};
use tests::vm::{Guest, Options, Vm};
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
    /// Show what the daemon logs
    #[arg(long)]
    log: bool,
}

const WORDS: u32 = 48;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let started = Instant::now();
    let step = |text: &str| println!("[{:5.1} s] {text}", started.elapsed().as_secs_f32());

    step("checking what this machine has");
    prerequisites::provide()?;
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
    let script = completion::script(before, WORDS);
    let limit = Duration::from_secs(600);
    let options =
        Options { gpus: vec![daemon.socket()], echo: true, kvm: arguments.kvm, limit, ..Options::default() };
    let outcome = Vm::run(&guest, &script, &options)
        .with_context(|| format!("the daemon logged:\n{}", daemon.log()))?;
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
