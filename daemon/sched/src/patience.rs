//! The GPU time that may be idled away while a context is waited for, and the wait itself. This file knows no tenants.

use super::time::{SECOND, scaled};
use super::{ContextKey, Nanos, Tuning};

/// GPU time that may be idled away.
#[derive(Debug)]
pub(super) struct Patience {
    left: Nanos,
    /// True after all of it was used up: some time has to be saved before any is used again.
    is_saved: bool,
    wait: Option<Wait>,
}

/// A wait for which the GPU idles.
#[derive(Clone, Copy, Debug)]
struct Wait {
    /// The context that the GPU idles for.
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

    /// Returns whether there is any idle time left to spend.
    pub(super) fn is_left(&self) -> bool {
        self.left > 0 && !self.is_saved
    }

    /// Lets the GPU idle for a context from now on. Returns until when it may, at most until `until`.
    pub(super) fn wait(&mut self, key: ContextKey, until: Nanos, now: Nanos) -> Nanos {
        let since = self.wait.map_or(now, |wait| wait.since);
        let until = until.min(since.saturating_add(self.left));
        self.wait = Some(Wait { key, since, until });
        until
    }

    /// The wait is over, if there was one, unless it is for `except`. Returns the context that was waited for, and for how long. The GPU idles for
    /// `start` more.
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

/// The time for which patience is saved up.
const SAVED_MAX: Nanos = SECOND;
