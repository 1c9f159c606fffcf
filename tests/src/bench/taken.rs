//! One measure on one side in one round: its time, and its result.

use super::figures::Reading;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Duration;

/// The number of rounds and submissions of a measurement, and the time of a round.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The number of rounds that count; one more before them is ignored.
    pub rounds: u32,
    /// The time of a round.
    pub time: Duration,
    /// Submissions while costs are counted.
    pub counted: u32,
}

/// The result of one side in one round.
#[derive(Clone, Debug)]
pub enum Taken {
    /// A reading, if any, for each row of the probe, and the limit, if any, that the probe has reached.
    Readings(Vec<Option<Reading>>, Option<String>),
    /// The device lacks a feature that the measure needs.
    Missing(String),
}

/// Returns the reading of one round from the program's answer: the number under `key`, and the 99th percentile.
pub(super) fn reading(said: &Value, key: &str) -> Result<Reading> {
    let number = |key: &str| said[key].as_f64().with_context(|| format!("no {key} in {said}"));
    Ok(Reading { value: number(key)?, p99: Some(number("p99")?) })
}
