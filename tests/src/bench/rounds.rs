//! Takes a measure on all sides by turns, again and again, so that a disturbance of the machine affects all sides alike.

use super::cost;
use super::figures::{Column, Line, Reading};
use super::llama::{self, Llama};
use super::measures::{Ask, Probe};
use super::memory;
use super::scale;
use super::sides::{Side, Sides};
use super::start;
use super::taken::{Taken, Timing, reading};
use anyhow::{Context, Result};

/// Takes one probe in rounds: host, guests, guests backwards, host, and so on.
///
/// # Errors
/// A program fails.
pub fn run(sides: &mut Sides, probe: &Probe, timing: Timing, llama: Option<&Llama>) -> Result<Vec<Line>> {
    let count = sides.all.len();
    let names: Vec<String> = sides.all.iter().map(|side| side.name.clone()).collect();
    let mut taken: Vec<Vec<Vec<Option<Reading>>>> = vec![vec![Vec::new(); count]; probe.rows.len()];
    let mut notes: Vec<(String, String)> = Vec::new();
    let mut absent = vec![false; count];
    let (warm_up, rounds) = rounds_of(&probe.ask, timing);
    for round in 0..rounds + u32::from(warm_up) {
        let mut order: Vec<usize> = (0..count).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let counts = !(warm_up && round == 0);
        for side in order {
            if absent[side] || absent[0] {
                continue;
            }
            let time = if counts { timing.time } else { timing.time / 2 };
            let timing = Timing { time, ..timing };
            let got = take(sides, side, &probe.ask, timing, llama);
            match got.with_context(|| format!("{} in {}", probe.rows[0].name, names[side]))? {
                Taken::Missing(what) => {
                    absent[side] = true;
                    notes.push((names[side].clone(), format!("no {what}")));
                }
                Taken::Readings(readings, note) if counts => {
                    taken.iter_mut().zip(readings).for_each(|(row, reading)| row[side].push(reading));
                    let note = note.map(|note| (names[side].clone(), note));
                    notes.extend(note.filter(|note| !notes.contains(note)));
                }
                Taken::Readings(..) => {}
            }
        }
    }
    sides.all.iter_mut().for_each(|side| side.idle.clear());
    let software = sides.is_software();
    let lines = probe.rows.iter().zip(taken).map(|(row, taken)| {
        let columns = names.iter().zip(taken).map(|(name, rounds)| Column { name: name.clone(), rounds });
        Line { row: row.clone(), columns: columns.collect(), notes: Vec::new(), software }
    });
    let mut lines: Vec<Line> = lines.collect();
    if let Some(last) = lines.last_mut() {
        last.notes = notes;
    }
    Ok(lines)
}

/// Returns whether there is a round that does not count, and how many rounds do.
fn rounds_of(ask: &Ask, timing: Timing) -> (bool, u32) {
    match ask {
        Ask::Gauge(..) | Ask::Kernels(..) | Ask::Start(1) => (true, timing.rounds),
        Ask::Start(_) => (true, timing.rounds.min(3)),
        // Both take their time, and warm up on their own.
        Ask::Cost(_) | Ask::Memory => (false, timing.rounds.div_ceil(3)),
        Ask::Llama => (false, timing.rounds.min(3)),
        Ask::Contexts(_) => (false, timing.rounds.min(3)),
        Ask::Once(..) => (false, 1),
    }
}

fn take(sides: &mut Sides, side: usize, ask: &Ask, timing: Timing, llama: Option<&Llama>) -> Result<Taken> {
    let milliseconds = timing.time.as_millis().max(1);
    let asked = match ask {
        Ask::Gauge(words, key) => (format!("{words} {milliseconds}"), *key),
        Ask::Kernels(length, pending) => {
            let size = sides.kernel(*length)?;
            // Long enough for several of the long kernels, too.
            let milliseconds = milliseconds.max(u128::from(*length) * 10 / 1000);
            (format!("kernels {} {} {pending} {milliseconds}", size.words, size.steps), "mean")
        }
        Ask::Once(words, keys) => return once(&mut sides.all[side], words, keys),
        Ask::Start(count) => return start::take(&sides.all[side], &sides.place, *count),
        Ask::Cost(pace) => return cost::take(&mut sides.all[side], *pace, timing),
        Ask::Memory => return memory::take(&mut sides.all[side]),
        Ask::Contexts(contexts) => {
            return scale::take(&mut sides.all[side], &sides.place, *contexts, timing.time);
        }
        Ask::Llama => {
            return llama::take(&sides.all[side], &sides.place, llama.context("there is no llama-bench")?);
        }
    };
    let said = sides.all[side].ask(&asked.0)?;
    Ok(match said["missing"].as_str() {
        Some(what) => Taken::Missing(what.to_owned()),
        None => Taken::Readings(vec![Some(reading(&said, asked.1)?)], None),
    })
}

fn once(side: &mut Side, words: &str, keys: &[&str]) -> Result<Taken> {
    let said = side.ask(words)?;
    let readings = keys.iter().map(|key| said[*key].as_f64().map(Reading::of));
    Ok(Taken::Readings(readings.collect(), said["limit"].as_str().map(str::to_owned)))
}
