//! The GPU time that may be idled away while a context is waited for, and the wait itself. Knows no tenants.

use super::time::{SECOND, scaled};
use super::{ContextKey, Nanos, Tuning};

/// GPU time that may be idled away.
#[derive(Debug)]
pub(super) struct Patience {
    left: Nanos,
    /// It was used up, and is saved for some time before any of it is used again.
    is_saved: bool,
    wait: Option<Wait>,
}

/// The GPU idles.
#[derive(Clone, Copy, Debug)]
struct Wait {
    /// Who is waited for.
    key: ContextKey,
    since: Nanos,
    until: Nanos,
}

impl Patience {
    pub(super) fn new(tuning: &Tuning) -> Self {
        Self { left: scaled(SAVED_MAX / 2, tuning.anticipation), is_saved: false, wait: None }
    }

    pub(super) fn accrue(&mut self, passed: Nanos, tuning: &Tuning) {
        let more = scaled(passed, tuning.anticipation);
        self.left = self.left.saturating_add(more).min(scaled(SAVED_MAX, tuning.anticipation));
        self.is_saved &= self.left < scaled(SAVED_MAX / 2, tuning.anticipation);
    }

    /// Whether there is any.
    pub(super) fn is_left(&self) -> bool {
        self.left > 0 && !self.is_saved
    }

    /// The GPU idles from now on for a context. Answers until when it may, at most until `until`.
    pub(super) fn wait(&mut self, key: ContextKey, until: Nanos, now: Nanos) -> Nanos {
        let since = self.wait.map_or(now, |wait| wait.since);
        let until = until.min(since.saturating_add(self.left));
        self.wait = Some(Wait { key, since, until });
        until
    }

    /// The wait is over, if there was one, or is now for another than `except`. Answers who was waited for, and for how long. The GPU
    /// idles for `start` more.
    pub(super) fn over(
        &mut self,
        except: Option<ContextKey>,
        now: Nanos,
        start: Nanos,
    ) -> Option<(ContextKey, Nanos)> {
        let wait = self.wait.take_if(|wait| Some(wait.key) != except)?;
        let idle = now.min(wait.until).saturating_sub(wait.since);
        let idle = idle + start;
        self.left = self.left.saturating_sub(idle);
        self.is_saved |= self.left == 0;
        Some((wait.key, idle))
    }
}

/// Patience is saved up for so long.
const SAVED_MAX: Nanos = SECOND;
