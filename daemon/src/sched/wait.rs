//! Idling for a context that will submit at once. One that submits, waits for the completion and thinks for a moment has nothing ready
//! when the GPU becomes free, so it would have to wait for a whole long unit of another each time. To wait for it instead costs GPU time;
//! how much is bounded.

use super::pick::Candidate;
use super::tenant::{Context, scaled, virtual_time};
use super::tuning::{MICROSECOND, MILLISECOND, SECOND};
use super::{Class, ContextKey, Nanos, Scheduler, Tuning};

/// GPU time that may be idled away.
#[derive(Debug)]
pub(super) struct Patience {
    left: Nanos,
    /// Since when the GPU idles.
    since: Option<Nanos>,
}

impl Patience {
    pub(super) fn new(tuning: &Tuning) -> Self {
        Self { left: scaled(SAVED_MAX / 5, tuning.anticipation), since: None }
    }

    pub(super) fn accrue(&mut self, passed: Nanos, tuning: &Tuning) {
        let more = scaled(passed, tuning.anticipation);
        self.left = self.left.saturating_add(more).min(scaled(SAVED_MAX, tuning.anticipation));
    }

    /// Idling ends.
    pub(super) fn granted(&mut self, now: Nanos) {
        if let Some(since) = self.since.take() {
            let idle = now.saturating_sub(since).saturating_add(START);
            self.left = self.left.saturating_sub(idle);
        }
    }

    fn until(&mut self, now: Nanos) -> Nanos {
        self.since.get_or_insert(now).saturating_add(self.left)
    }
}

impl Scheduler {
    /// Whether to grant nothing now because a context that should come before `best` will submit at once.
    pub(super) fn waits_before(&mut self, best: &Candidate) -> bool {
        let longest = self.tuning.think_max.min(best.estimate / 10);
        if self.patience.left == 0 || longest < MICROSECOND {
            return false;
        }
        let busy = !self.units.0.is_empty();
        let until = self.contexts.iter().filter(|(_, context)| self.is_worth_waiting(context, best, longest));
        let until = until.filter_map(|(key, context)| self.submits_until(*key, context, busy)).max();
        let Some(mut until) = until else { return false };
        if !busy {
            until = until.min(self.patience.until(self.now));
        }
        if until > self.now {
            self.look_at(until);
        }
        until > self.now
    }

    /// Whether a context thinks shortly, and would come before `best` if it had work.
    fn is_worth_waiting(&self, context: &Context, best: &Candidate, longest: Nanos) -> bool {
        let short = context.think.is_some_and(|think| think < longest);
        if !short || context.is_ready() {
            return false;
        }
        let Some(tenant) = self.tenants.get(&context.tenant) else { return false };
        let allowed = tenant.competes || (tenant.active == 0 && tenant.share.class != Class::Background);
        let behind = if context.tenant == best.tenant {
            context.v < best.context_v + virtual_time(SLACK, 1)
        } else {
            tenant.v < best.v + virtual_time(SLACK, best.weight)
        };
        allowed && behind
    }

    /// Until when a context that runs or thinks will have submitted again.
    fn submits_until(&self, key: ContextKey, context: &Context, busy: bool) -> Option<Nanos> {
        let think = context.think?.saturating_mul(3).saturating_add(100 * MICROSECOND);
        if !context.in_driver() {
            return (!busy).then(|| context.last_completion.map(|at| at.saturating_add(think)))?;
        }
        // It has to end before it thinks; one that takes far longer than it used to is not waited for.
        let twice = context.estimate(&self.tuning).saturating_mul(2).saturating_add(MILLISECOND);
        self.units.of(key).next().map(|unit| unit.since.saturating_add(twice).saturating_add(think))
    }
}

/// The GPU idles for so long more until what is granted then starts.
const START: Nanos = 100 * MICROSECOND;
/// How far beyond its turn a context is waited for: its estimate may be wrong by so much.
const SLACK: Nanos = 2 * MILLISECOND;
/// Patience is saved up for so long.
const SAVED_MAX: Nanos = SECOND;
