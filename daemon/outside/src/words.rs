//! Values in words, for messages that people read: text of another origin, times, and sizes.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// Text of another origin within a message: in quotation marks, and with escapes for characters that would end it, break the line or be hidden.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.0)
    }
}

/// A time with its unit, rounded to a tenth: `21.3 ms`, `2 s`, `5 min`.
#[derive(Clone, Copy, Debug)]
pub struct Span(pub Duration);

impl Display for Span {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let (number, unit) = match seconds {
            ..1.0 => (seconds * 1000.0, "ms"),
            ..120.0 => (seconds, "s"),
            _ => (seconds / 60.0, "min"),
        };
        write!(formatter, "{} {unit}", (number * 10.0).round() / 10.0)
    }
}

/// A number of bytes, written in the largest of B, KiB, MiB and GiB that makes it at least 1, rounded to a tenth: `0B`, `1.5GiB`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl Display for Bytes {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0 >> shift > 0) {
            Some((shift, unit)) => write!(formatter, "{:.1}{unit}", self.0 as f64 / (1u64 << shift) as f64),
            None => write!(formatter, "{}B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_stays_between_its_marks() {
        assert_eq!(Quoted("a\" b\n\u{202e}").to_string(), "\"a\\\" b\\n\\u{202e}\"");
    }

    #[test]
    fn times_have_units_and_few_digits() {
        let shown = |micros| Span(Duration::from_micros(micros)).to_string();
        assert_eq!(shown(0), "0 ms");
        assert_eq!(shown(21_349), "21.3 ms");
        assert_eq!(shown(2_000_000), "2 s");
        assert_eq!(shown(60_000_000), "60 s");
        assert_eq!(shown(3_600_000_000), "60 min");
    }

    #[test]
    fn sizes_have_a_unit() {
        let shown = [0, 1023, 1024, 5 << 20, 3 << 29].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(shown, ["0B", "1023B", "1.0KiB", "5.0MiB", "1.5GiB"]);
    }
}
