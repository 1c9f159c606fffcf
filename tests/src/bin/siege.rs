//! `cargo siege`: attacks on a broker beside VMs that only compute; see `tests::siege`.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use std::time::Duration;
use tests::siege::{self, ALL, Attack, Report};

#[derive(Parser)]
#[command(about = "Attack a broker from several VMs, and look at what becomes of it and of its other VMs")]
struct Arguments {
    /// Seconds for which the attacks go on
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Make each attack by itself, for all these seconds
    #[arg(long)]
    each: bool,
    /// Attacks to make; all if none is named
    attacks: Vec<String>,
}

fn main() -> Result<()> {
    env_logger::init();
    let Arguments { seconds, each, attacks } = Arguments::parse();
    let chosen = choose(&attacks)?;
    let time = Duration::from_secs(seconds);
    let groups: Vec<&[&Attack]> = if each { chosen.chunks(1).collect() } else { vec![&chosen] };
    let mut faults = Vec::new();
    for group in groups {
        let report: Report = siege::run(group, time)?;
        println!("{report}");
        faults.extend(report.faults());
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

fn choose(names: &[String]) -> Result<Vec<&'static Attack>> {
    if names.is_empty() {
        return Ok(ALL.iter().collect());
    }
    let one = |name: &String| {
        let known = || ALL.iter().map(|attack| attack.name).collect::<Vec<_>>().join(", ");
        ALL.iter()
            .find(|attack| attack.name == name)
            .with_context(|| format!("no attack {name}; there are {}", known()))
    };
    names.iter().map(one).collect()
}
