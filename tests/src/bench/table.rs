//! The results, as text and as JSON.

use super::figures::{Column, Line, Quartiles};
use super::measures::Unit;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The tables of these lines, one for each group, with a line for each row and guest.
#[must_use]
pub fn to_table(lines: &[Line]) -> String {
    let mut text = String::new();
    for group in lines.chunk_by(|one, next| one.row.group == next.row.group) {
        let _ = writeln!(
            text,
            "\n{:22} {:>13} {:>13}   {:10} {:>13} {:>13}   {:24} goal",
            group[0].row.group, "native", "p99", "guest", "median", "p99", "ratio (quartiles)"
        );
        group.iter().for_each(|line| add_line(&mut text, line));
    }
    text
}

fn add_line(text: &mut String, line: &Line) {
    let shown =
        |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| show(number, line.row.unit));
    let (mut name, mut native) =
        (line.row.name.as_str(), [shown(line.native().median()), shown(line.native().p99())]);
    for guest in line.guests() {
        let ratio = line.ratio(guest).map_or_else(
            || "-".to_owned(),
            |ratio| format!("{:.3} ({:.3}..{:.3})", ratio.median, ratio.low, ratio.high),
        );
        let (median, p99) = (shown(guest.median()), shown(guest.p99()));
        let row = format!(
            "{name:22} {:>13} {:>13}   {:10} {median:>13} {p99:>13}   {ratio:24} {}",
            native[0],
            native[1],
            guest.name,
            verdict(line, guest)
        );
        let _ = writeln!(text, "{}", row.trim_end());
        (name, native) = ("", [String::new(), String::new()]);
    }
    for (side, note) in &line.notes {
        let _ = writeln!(text, "{:22} {side}: {note}", "");
    }
}

fn verdict(line: &Line, guest: &Column) -> String {
    let Some(goal) = line.goal(guest) else { return String::new() };
    match line.is_reached(guest) {
        Some(true) => format!("{goal}: ok"),
        Some(false) => format!("{goal}: short"),
        None => String::new(),
    }
}

/// A number in a unit that fits its size.
pub(super) fn show(number: f64, unit: Unit) -> String {
    match unit {
        Unit::Time if number >= 1e9 => format!("{:.2} s", number / 1e9),
        Unit::Time if number >= 1e6 => format!("{:.2} ms", number / 1e6),
        Unit::Time if number >= 1e3 => format!("{:.2} us", number / 1e3),
        Unit::Time => format!("{number:.0} ns"),
        Unit::Rate => match 1e9 / number {
            rate if rate >= 1e4 => format!("{rate:.0} /s"),
            rate => format!("{rate:.1} /s"),
        },
        Unit::Bandwidth(bytes) => format!("{:.2} GB/s", bytes as f64 / number),
        Unit::Count(each) => format!("{number:.2} {each}"),
        Unit::Amount(what) => format!("{number:.0} {what}"),
    }
}

/// Returns all results, with each round, as JSON. Times are in nanoseconds: for one, or for the bytes of a bandwidth.
#[must_use]
pub fn to_json(lines: &[Line]) -> Value {
    let rounds = |column: &Column| -> Vec<Option<f64>> {
        column.rounds.iter().map(|reading| reading.map(|reading| reading.value)).collect()
    };
    let line = |line: &Line| {
        let guests = line.guests().iter().map(|guest| {
            let ratio = line.ratio(guest).map(|Quartiles { low, median, high }| {
                json!({ "median": median, "q1": low, "q3": high })
            });
            json!({
                "guest": guest.name, "median": guest.median(), "p99": guest.p99(), "rounds": rounds(guest), "ratio": ratio,
                "goal": line.goal(guest).map(|goal| goal.to_string()), "reached": line.is_reached(guest),
            })
        });
        let (unit, bytes) = match line.row.unit {
            Unit::Time => ("ns", None),
            Unit::Rate => ("ns each", None),
            Unit::Bandwidth(bytes) => ("ns", Some(bytes)),
            Unit::Count(what) | Unit::Amount(what) => (what, None),
        };
        let native = line.native();
        json!({
            "group": line.row.group, "measure": line.row.name, "unit": unit, "bytes": bytes,
            "native": { "median": native.median(), "p99": native.p99(), "rounds": rounds(native) },
            "guests": guests.collect::<Vec<_>>(), "notes": line.notes,
        })
    };
    Value::Array(lines.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_in_a_unit_of_their_size() {
        assert_eq!(show(41_000.0, Unit::Time), "41.00 us");
        assert_eq!(show(2e6, Unit::Rate), "500.0 /s");
        assert_eq!(show(1e6, Unit::Bandwidth(50_000_000)), "50.00 GB/s");
        assert_eq!(show(0.5, Unit::Count("/1000")), "0.50 /1000");
    }
}
