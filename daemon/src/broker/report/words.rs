//! Numbers as people read them, and characters as a terminal may get them.

/// A part of a whole in percent.
#[must_use]
pub fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

/// A time, given in seconds, with a unit that suits it.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1.0 => format!("{:.1}ms", seconds * 1000.0),
        seconds if seconds < 600.0 => format!("{seconds:.2}s"),
        seconds if seconds < 36_000.0 => format!("{:.1}min", seconds / 60.0),
        seconds => format!("{:.1}h", seconds / 3600.0),
    }
}

/// A number of bytes, with a unit that suits it.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift > 0);
    unit.map_or_else(
        || format!("{bytes}B"),
        |(shift, unit)| format!("{:.1}{unit}", bytes as f64 / (1u64 << shift) as f64),
    )
}

/// A character as a terminal may get it. Guests name programs and drivers name GPUs: what would command the terminal, turn the direction of
/// the text around, or not be seen at all, becomes a question mark.
#[must_use]
pub fn visible(c: char) -> char {
    let is_hidden = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    if c.is_control() || is_hidden { '?' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_readable() {
        let shown: Vec<_> = [0.0, 0.25, 59.5, 6000.0, 72_000.0].map(seconds).into();
        assert_eq!(shown, ["0.0ms", "250.0ms", "59.50s", "100.0min", "20.0h"]);
        let shown: Vec<_> = [0, 1023, 1024, 3 << 29].map(bytes).into();
        assert_eq!(shown, ["0B", "1023B", "1.0KiB", "1.5GiB"]);
    }

    #[test]
    fn what_commands_a_terminal_is_not_visible() {
        let shown: String = "ok é 名\u{1b}\u{7f}\u{9b}\u{202e}\u{200b}\n".chars().map(visible).collect();
        assert_eq!(shown, "ok é 名??????");
    }
}
