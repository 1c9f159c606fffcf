//! Log lines that a guest can cause, a few per kind and minute.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines per kind that may come at once.
const BURST: u32 = 5;
/// Time after which a kind may have another line.
const REFILL: Duration = Duration::from_secs(10);

/// Counts lines by kind. Kinds are names from the program's text, so there are few.
#[derive(Debug, Default)]
pub(in crate::serve) struct LogLimiter {
    kinds: HashMap<&'static str, Kind>,
}

#[derive(Debug)]
struct Kind {
    left: u32,
    refilled: Instant,
    suppressed: u64,
}

impl LogLimiter {
    /// Returns how many lines of this kind were not logged since the last, if one may be logged now.
    pub(in crate::serve) fn allow(&mut self, kind: &'static str, now: Instant) -> Option<u64> {
        let kind = self.kinds.entry(kind).or_insert(Kind { left: BURST, refilled: now, suppressed: 0 });
        let periods = now.saturating_duration_since(kind.refilled).as_secs() / REFILL.as_secs();
        if periods > 0 {
            kind.left = kind.left.saturating_add(u32::try_from(periods).unwrap_or(BURST)).min(BURST);
            kind.refilled = now;
        }
        if kind.left == 0 {
            kind.suppressed += 1;
            return None;
        }
        kind.left -= 1;
        Some(std::mem::take(&mut kind.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_a_burst_and_then_a_line_per_period() {
        let mut limiter = LogLimiter::default();
        let start = Instant::now();
        let allowed = (0..1000).filter_map(|_| limiter.allow("contexts", start)).count();
        assert_eq!(allowed, 5);
        assert_eq!(limiter.allow("resources", start), Some(0));
        assert_eq!(limiter.allow("contexts", start + REFILL), Some(995));
        assert_eq!(limiter.allow("contexts", start + REFILL), None);
    }
}
