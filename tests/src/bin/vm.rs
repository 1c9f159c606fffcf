//! Boots a guest by hand: `vm SUITE [--gpu SOCKET] SCRIPT`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use tests::packages::Suite;
use tests::vm::{Guest, Options, Script, Vm};

#[derive(Parser)]
#[command(about = "Boot a stock Debian guest and run a shell script in it")]
struct Arguments {
    suite: Suite,
    /// vhost-user socket of a GPU; may be repeated
    #[arg(long)]
    gpu: Vec<PathBuf>,
    /// Print kernel and init messages at the end
    #[arg(long)]
    console: bool,
    /// Use KVM instead of emulation
    #[arg(long)]
    kvm: bool,
    /// What to run
    script: String,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let guest = Guest::build(arguments.suite)?;
    let options = Options { gpus: arguments.gpu, echo: true, kvm: arguments.kvm, ..Options::default() };
    let outcome = Vm::run(&guest, &Script::new(&arguments.script), &options)?;
    if arguments.console {
        eprintln!("{}", outcome.console);
    }
    Ok(ExitCode::from(u8::try_from(outcome.status)?))
}
