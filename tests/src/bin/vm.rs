//! Boots a guest by hand: `vm SUITE [--gpu SOCKET] SCRIPT`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
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
    /// A program to put into the guest's root folder; may be repeated
    #[arg(long)]
    file: Vec<PathBuf>,
    /// Print kernel and init messages at the end
    #[arg(long)]
    console: bool,
    /// Use KVM instead of emulation
    #[arg(long)]
    kvm: bool,
    /// The script to run
    script: String,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let guest = Guest::build(arguments.suite)?;
    let options = Options { gpus: arguments.gpu, echo: true, kvm: arguments.kvm, ..Options::default() };
    let mut script = Script::new(&arguments.script);
    for file in &arguments.file {
        let name = file.file_name().context("a file has a name")?.to_string_lossy();
        script = script.with_file(&name, std::fs::read(file)?);
    }
    let outcome = Vm::run(&guest, &script, &options)?;
    if arguments.console {
        eprintln!("{}", outcome.console);
    }
    Ok(ExitCode::from(u8::try_from(outcome.status)?))
}
