//! Figures, and the judgement of their changes.

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The cost of a command, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Instructions.
    pub instructions: f64,
    /// Allocations of memory.
    pub allocations: f64,
}

/// Figures by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(pub BTreeMap<String, Figure>);

/// The result of comparing a figure with the committed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The figure has not changed.
    Same,
    /// The figure is so much better that the committed one is stale.
    Better,
    /// The figure is so much worse that it must not pass.
    Worse,
}

/// The part by which a figure may differ.
const TOLERANCE: f64 = 0.1;
/// Allocations are exact, except for vectors that grow now and then.
const ALLOCATIONS: f64 = 0.1;

/// Compares the figures of this run with the committed ones.
#[must_use]
pub fn compare(found: Figure, committed: Figure) -> Verdict {
    let ratio = found.instructions / committed.instructions;
    let allocations = found.allocations - committed.allocations;
    if ratio > 1.0 + TOLERANCE || allocations > ALLOCATIONS {
        Verdict::Worse
    } else if ratio < 1.0 - TOLERANCE || allocations < -ALLOCATIONS {
        Verdict::Better
    } else {
        Verdict::Same
    }
}

impl Figures {
    /// Reads the committed figures.
    ///
    /// # Errors
    /// The file is not there or cannot be parsed.
    pub fn committed() -> Result<Self> {
        let text = std::fs::read_to_string(path()).with_context(|| format!("{}", path().display()))?;
        let values: Map<String, Value> = serde_json::from_str(&text)?;
        let figure = |(name, value): (String, Value)| {
            let number = |key: &str| value[key].as_f64().with_context(|| format!("{name}: no {key}"));
            let (instructions, allocations) = (number("instructions")?, number("allocations")?);
            Ok((name, Figure { instructions, allocations }))
        };
        Ok(Self(values.into_iter().map(figure).collect::<Result<_>>()?))
    }

    /// Writes the figures to be committed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn commit(&self) -> Result<()> {
        let value = |figure: &Figure| {
            let allocations = (figure.allocations * 100.0).round() / 100.0;
            json!({ "instructions": figure.instructions.round() as u64, "allocations": allocations })
        };
        let values: Map<_, _> = self.0.iter().map(|(name, figure)| (name.clone(), value(figure))).collect();
        std::fs::write(path(), serde_json::to_string_pretty(&values)? + "\n").context("cannot write figures")
    }
}

fn path() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.json").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_more_or_an_allocation_more_is_worse() {
        let was = Figure { instructions: 1000.0, allocations: 2.0 };
        let is = |instructions, allocations| compare(Figure { instructions, allocations }, was);
        assert_eq!([is(1090.0, 2.0), is(910.0, 2.05)], [Verdict::Same; 2]);
        assert_eq!([is(1110.0, 2.0), is(500.0, 3.0)], [Verdict::Worse; 2]);
        assert_eq!([is(890.0, 2.0), is(1000.0, 1.0)], [Verdict::Better; 2]);
    }
}
