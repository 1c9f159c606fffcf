//! Many contexts; one of them works.

use super::figures::Reading;
use super::sides::Side;
use super::taken::{Taken, reading};
use crate::stand::{Dialogue, Place};
use anyhow::Result;
use std::time::{Duration, Instant};

/// Starts idle contexts until there are `contexts` with the working one, and measures the time of a small submission in the working context, and the
/// time of starting the others, one after the other.
pub(super) fn take(side: &mut Side, place: &Place, contexts: usize, time: Duration) -> Result<Taken> {
    let (begun, before) = (Instant::now(), side.idle.len() + 1);
    while side.idle.len() + 1 < contexts {
        let idle = Dialogue::start(side.command(place, &place.program)?)?;
        idle.hear()?;
        side.idle.push(idle);
    }
    let value = begun.elapsed().as_nanos() as f64 / contexts.saturating_sub(before).max(1) as f64;
    let started = (before < contexts).then_some(Reading::of(value));
    let said = side.ask(&format!("dispatch {}", time.as_millis().max(1)))?;
    Ok(Taken::Readings(vec![Some(reading(&said, "median")?), started], None))
}
