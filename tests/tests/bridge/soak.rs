//! The short form of the soak: `cargo soak` is the long one.

use anyhow::{Result, ensure};
use std::time::Duration;
use tests::soak::{self, Plan};

#[test]
#[ignore = "a soak: `cargo soak` is its longer form"]
fn half_an_hour_of_an_operators_pace_leaves_nothing_behind() -> Result<()> {
    // Each event of the table happens, and the rare ones more often than at an operator's pace.
    let plan = Plan { hours: 0.5, speed: 15.0, seed: 1, rest_every: Duration::from_secs(10) };
    let report = soak::run(plan, env!("CARGO_BIN_EXE_many_threads").into())?;
    println!("{report}");
    ensure!(report.faults().is_empty(), "{}", report.faults().join("\n"));
    for event in ["programs", "hung submissions", "device processes killed", "reloads with another VM"] {
        ensure!(report.done(event) > 0, "no {event}");
    }
    Ok(())
}
