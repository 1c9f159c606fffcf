//! Plays one workload on the driver that does nothing, for `cargo instructions` to count its cost: `instructions NAME LAPS LIVE [lease | journal]`, with so
//! many laps of the workload while so many other objects live. Prints the number of commands of the laps.
//!
//! `instructions` alone lists the workloads. `RUST_LOG=debug` tells why commands do not reach the driver.

mod objects;
mod workloads;

use daemon::worker::workload::{Workload, play};
use std::process::ExitCode;

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        [] => {
            workloads::ALL.iter().for_each(|workload| println!("{}", workload.name));
            Ok(())
        }
        [name, laps, live] => run(name, laps, live, (false, false)),
        [name, laps, live, "lease"] => run(name, laps, live, (true, false)),
        [name, laps, live, "journal"] => run(name, laps, live, (false, true)),
        _ => Err("wanted: NAME LAPS LIVE [lease | journal]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: &str, laps: &str, live: &str, (gated, journalled): (bool, bool)) -> Result<(), String> {
    let number = |text: &str| text.parse::<u32>().map_err(|error| format!("{text}: {error}"));
    let (laps, live) = (number(laps)?, number(live)?);
    let workload = workloads::ALL.iter().find(|workload| workload.name == name);
    let workload = workload.ok_or_else(|| format!("no workload {name}"))?;
    let prepare = objects::prepare(live);
    let (lap, commands) = (workload.lap)();
    let played = Workload { prepare: &prepare, lap: &lap, laps, gated, journalled };
    let calls = play(&played).map_err(|lost| lost.to_string())?;
    // A command that breaks valid usage is left out, and would make the cost too low. A command that fails ends the run.
    let wanted = u64::from(laps) * u64::from(commands);
    if workload.reach && calls < wanted {
        return Err(format!("{wanted} commands and only {calls} calls of the driver"));
    }
    println!("{wanted}");
    Ok(())
}
