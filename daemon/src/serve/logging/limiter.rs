//! The limit on log lines that a guest can cause: a few per kind and minute.

use log::Level;
use protocol::ids::ContextId;
use std::collections::HashMap;
use std::fmt;
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

/// The part of the VM that a line is about.
#[derive(Clone, Copy, Debug)]
pub(in crate::serve) enum Subject<'a> {
    /// The device as a whole.
    Vm,
    /// A context, and the name of its program if that is known.
    Context(ContextId, Option<&'a str>),
}

impl LogLimiter {
    /// Logs a line of a kind if one may be logged now. The line says how many were suppressed since the last logged one.
    pub(in crate::serve) fn log(
        &mut self,
        level: Level,
        kind: &'static str,
        subject: Subject<'_>,
        message: fmt::Arguments<'_>,
    ) {
        let Some(suppressed) = self.allow(kind, Instant::now()) else { return };
        let suppressed = (suppressed > 0).then_some(suppressed);
        let (context, program) = match subject {
            Subject::Vm => (None, None),
            Subject::Context(context, program) => (Some(context.0), program),
        };
        log::log!(level, context, program, suppressed; "{message}");
    }

    /// Returns how many lines of this kind were suppressed since the last logged one, if one may be logged now.
    fn allow(&mut self, kind: &'static str, now: Instant) -> Option<u64> {
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
