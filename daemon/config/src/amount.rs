//! Amounts of memory as people write them: bytes with a unit, and for a GPU's memory also a percentage; and times.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// An amount of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Amount {
    /// An amount in bytes.
    Bytes(u64),
    /// A part of the whole memory, in hundredths of a percent: 1 to 10 000.
    Part(u64),
}

/// The whole memory, in hundredths of a percent.
const WHOLE: u64 = 10_000;

impl Amount {
    /// Returns the bytes of an amount of `all` bytes.
    #[must_use]
    pub fn of(self, all: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Part(part) => (u128::from(all) * u128::from(part) / u128::from(WHOLE)) as u64,
        }
    }
}

impl FromStr for Amount {
    type Err = String;

    /// Reads `50%`, `33.33%`, or a size as [`size`] does.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some(percent) = text.strip_suffix('%') else { return size(text).map(Self::Bytes) };
        let part = percent.parse::<f64>().ok().map(|percent| (percent * 100.0).round());
        let part = part.filter(|part| (1.0..=WHOLE as f64).contains(part));
        part.map(|part| Self::Part(part as u64)).ok_or_else(|| "not a percentage from 0.01% to 100%".into())
    }
}

/// Writes an amount in a form that can be read back.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Part(part) => write!(f, "{}%", *part as f64 / 100.0),
        }
    }
}

/// Reads a number of bytes, with KiB, MiB or GiB.
///
/// # Errors
///
/// The text is no size; the error says why.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(format!("unknown unit \"{unit}\" (use KiB, MiB or GiB)")),
    };
    let number: u64 = number.parse().map_err(|_| "not a size".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// Shortest and longest time: shorter times are lost in scheduling delays; longer ones are taken for mistakes.
const TIMES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

/// Reads a time, in ms, s or min.
///
/// # Errors
///
/// The text is no time from 100 ms to 60 min; the error says why.
pub fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let number: u32 = number.parse().map_err(|_| "not a time".to_owned())?;
    let unit = match unit {
        "ms" => Duration::from_millis(1),
        "" | "s" => Duration::from_secs(1),
        "min" => Duration::from_secs(60),
        _ => return Err(format!("unknown unit \"{unit}\" (use ms, s or min)")),
    };
    let time = unit.saturating_mul(number);
    if TIMES.contains(&time) { Ok(time) } else { Err("not from 100ms to 60min".into()) }
}

/// Splits a text into its leading digits and its unit.
fn split_unit(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_of_all_that_there_is_and_bytes_are_what_they_are() {
        let of = |text: &str, all| text.parse::<Amount>().map(|amount| amount.of(all));
        assert_eq!((of("50%", 80 << 30), of("33.33%", 10_000)), (Ok(40 << 30), Ok(3333)));
        assert_eq!((of("100%", u64::MAX), of("0.01%", 1 << 20)), (Ok(u64::MAX), Ok(104)));
        assert_eq!((of("4GiB", 1), of("0", 1)), (Ok(4 << 30), Ok(0)));
        for wrong in ["0%", "101%", "-1%", "NaN%", "inf%", "%", "5 %", "half", "0.001%"] {
            assert!(of(wrong, 1).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_amount_is_written_as_it_is_read() {
        for text in ["50%", "33.33%", "0.01%", "100%", "4096"] {
            assert_eq!(text.parse::<Amount>().map(|amount| amount.to_string()), Ok(text.to_owned()));
        }
    }
}
