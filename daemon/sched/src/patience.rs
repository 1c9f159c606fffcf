//! The GPU time that the scheduler may leave idle while it waits for a context, and the wait itself. This file knows no tenants.

use super::time::{SECOND, scaled};
use super::{ContextKey, Nanos, Tuning};

/// The GPU time that may still be left idle.
#[derive(Debug)]
pub(super) struct Patience {
    left: Nanos,
    /// True after all idle time was used up: some has to be saved up before any is used again.
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

    /// Lets the GPU idle for a context from now on. Returns the time until which the GPU may idle, at most `until`.
    pub(super) fn wait(&mut self, key: ContextKey, until: Nanos, now: Nanos) -> Nanos {
        let since = self.wait.map_or(now, |wait| wait.since);
        let until = until.min(since.saturating_add(self.left));
        self.wait = Some(Wait { key, since, until });
        until
    }

    /// Ends the wait, if there is one, unless it is for `except`. Returns the awaited context, and the time of the wait. The GPU idles for
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
