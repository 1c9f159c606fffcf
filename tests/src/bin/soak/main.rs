//! `cargo soak`: months of churn around a broker, in less time; see `tests::soak`.

use anyhow::{Result, ensure};
use clap::Parser;
use std::time::Duration;
use tests::program::cargo::{build, cargo};
use tests::soak::{self, Plan};

#[derive(Parser)]
#[command(
    about = "Let VMs, programs and operators come and go around a broker, and see whether anything stays"
)]
struct Arguments {
    /// Hours at an operator's pace
    #[arg(long, default_value_t = 72.0)]
    hours: f64,
    /// Operator's hours in an hour
    #[arg(long, default_value_t = 10.0)]
    speed: f64,
    /// Seed of the order and the times of the events
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Time between two lines of progress.
const REST_EVERY: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let Arguments { hours, speed, seed } = Arguments::parse();
    let threads = std::env::current_exe()?.with_file_name("many_threads");
    build(cargo().args(["build", "--quiet", "--bin", "many_threads"]), "many_threads")?;
    let report = soak::run(Plan { hours, speed, seed, rest_every: REST_EVERY }, threads)?;
    println!("{report}");
    let faults = report.faults();
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}
