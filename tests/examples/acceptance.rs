//! `cargo acceptance [STAGE...]`: runs the stages of the gate, or with `--all` everything.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use tests::acceptance::{self, Extent, Tally};
use tests::packages::Installed;

#[derive(Parser)]
#[command(about = "Check what a change must pass: format, lints, generated code, tests, guests")]
struct Arguments {
    /// Run only these stages
    stages: Vec<String>,
    /// Run all checks, also those that take too long for each change
    #[arg(long)]
    all: bool,
    /// Print the stages' names and end
    #[arg(long)]
    list: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let extent = if arguments.all { Extent::All } else { Extent::Gate };
    if arguments.list {
        acceptance::stages(extent).iter().for_each(|stage| println!("{}", stage.name));
        return Ok(ExitCode::SUCCESS);
    }
    if extent == Extent::All && arguments.stages.is_empty() && Installed::obstacle().is_none() {
        // The thread mostly waits for the network, while the first stages compile. A test that finds no system makes it, or says why it cannot.
        std::thread::spawn(|| Installed::provide().unwrap_or_else(|error| eprintln!("packages: {error:#}")));
    }
    let Tally { passed, failed } = acceptance::run(extent, &arguments.stages)?.tally();
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
