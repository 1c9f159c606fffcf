//! Processes that start: from their first instruction to a device, and back.

use super::figures::Reading;
use super::sides::Side;
use super::taken::Taken;
use crate::program::{LIMIT, Program, succeed};
use crate::stand::Place;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Command;
use std::time::Instant;

/// The number of times that the start of one process is measured alone in a round.
const TIMES: usize = 3;

/// Measures the start of processes. For one process: the times until it has a device, and until the device is destroyed again, as the process reports
/// them. For several: the time until all have ended.
pub(super) fn take(side: &Side, place: &Place, count: usize) -> Result<Taken> {
    let command = || -> Result<Command> {
        let mut command = side.command(place, &place.program)?;
        command.arg("--start-up");
        Ok(command)
    };
    if count > 1 {
        let commands = (0..count).map(|_| command()).collect::<Result<Vec<_>>>()?;
        let begun = Instant::now();
        let programs = commands.into_iter().map(Program::start).collect::<Result<Vec<_>>>()?;
        for program in programs {
            let output = program.wait(LIMIT)?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        return Ok(Taken::Readings(vec![Some(Reading::of(begun.elapsed().as_nanos() as f64))], None));
    }
    let said = (0..TIMES).map(|_| Ok(serde_json::from_str(&succeed(command()?, LIMIT)?)?));
    let said = said.collect::<Result<Vec<Value>>>()?;
    let readings = ["up", "all"].map(|key| {
        let times = said.iter().map(|said| said[key].as_f64().context("no time"));
        let mut times = times.collect::<Result<Vec<_>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(Some(Reading { value: times[times.len() / 2], p99: times.last().copied() }))
    });
    Ok(Taken::Readings(readings.into_iter().collect::<Result<_>>()?, None))
}
