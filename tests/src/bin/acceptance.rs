//! `cargo acceptance [STAGE...]`: runs the acceptance stages, all of them by default.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
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
    let tally = acceptance::run(&stages)?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
