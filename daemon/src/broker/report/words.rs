//! Numbers as people read them.

/// A part of a whole in percent.
#[must_use]
pub fn percent(part: f64) -> String {
    // A sum of no values is -0.
    format!("{:.1}%", part * 100.0 + 0.0)
}

/// A time, given in seconds, with a unit that suits it.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds + 0.0 {
        seconds if seconds < 1.0 => format!("{:.1}ms", seconds * 1000.0),
        seconds if seconds < 600.0 => format!("{seconds:.2}s"),
        seconds if seconds < 36_000.0 => format!("{:.1}min", seconds / 60.0),
        seconds => format!("{:.1}h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_readable() {
        let shown: Vec<_> = [-0.0, 0.25, 59.5, 6000.0, 72_000.0].map(seconds).into();
        assert_eq!(shown, ["0.0ms", "250.0ms", "59.50s", "100.0min", "20.0h"]);
        assert_eq!([-0.0, 0.333].map(percent), ["0.0%", "33.3%"]);
    }
}
