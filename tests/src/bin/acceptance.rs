//! `cargo acceptance [STAGE...]`: runs the acceptance stages, all of them by default.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use tests::packages::Installed;
use tests::{acceptance, prerequisites};

#[derive(Parser)]
#[command(about = "Check everything: format, lints, generated code, tests, guests")]
struct Arguments {
    /// Run only these stages
    stages: Vec<String>,
    /// Print the stages' names and end
    #[arg(long)]
    list: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let mut stages = acceptance::stages()?;
    for name in &arguments.stages {
        ensure!(stages.iter().any(|stage| stage.name == name), "no stage {name}; --list names them");
    }
    if !arguments.stages.is_empty() {
        stages.retain(|stage| arguments.stages.iter().any(|name| name == stage.name));
    }
    if arguments.list {
        stages.iter().for_each(|stage| println!("{}", stage.name));
        return Ok(ExitCode::SUCCESS);
    }
    prerequisites::provide()?;
    if Installed::obstacle().is_none() && stages.len() > 1 {
        // Most of it waits for the network, while the first stages compile. A test that finds no system makes it, or says why it cannot.
        std::thread::spawn(|| Installed::provide().unwrap_or_else(|error| eprintln!("packages: {error:#}")));
    }
    let tally = acceptance::run(&stages)?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
