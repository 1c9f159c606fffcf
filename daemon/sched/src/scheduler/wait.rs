//! Waiting for a context that will submit again at once, as it did before: one that submits when its last work has completed would have to wait for a
//! whole long unit of another each time. The scheduler charges the GPU time that it idles away to the context that it waits for, so that others lose
//! nothing by it, and bounds the sum of all.

use super::Scheduler;
use super::pick::Candidate;
use crate::tenant::{Context, virtual_time};
use crate::time::MILLISECOND;
use crate::{Class, ContextKey, Nanos};

impl Scheduler {
    /// Returns whether to grant nothing now because a context that should come before `best` will submit at once.
    pub(super) fn waits_before(&mut self, best: &Candidate) -> bool {
        if self.tuning.anticipation <= 0.0 {
            return false;
        }
        let contexts = self.contexts.iter().filter(|(_, context)| self.is_worth_waiting(context, best));
        let until = contexts.filter_map(|(key, context)| Some((self.submits_until(*key, context)?, *key)));
        let Some((mut until, key)) = until.filter(|(until, _)| *until > self.now).max() else { return false };
        if self.units.0.is_empty() {
            self.settle_wait(Some(key));
            until = self.patience.wait(key, until, self.now);
        }
        if until > self.now {
            self.look_at(until);
        }
        until > self.now
    }

    /// Ends the wait, unless it is for `except`: the context that was waited for pays.
    pub(super) fn settle_wait(&mut self, except: Option<ContextKey>) {
        if let Some((key, idle)) = self.patience.over(except, self.now, self.tuning.start) {
            self.charge(key, idle);
        }
    }

    /// Returns whether a context has nothing to be granted and would come well before `best` if it had.
    fn is_worth_waiting(&self, context: &Context, best: &Candidate) -> bool {
        if context.is_ready() {
            return false;
        }
        let Some(tenant) = self.tenants.get(&context.tenant) else { return false };
        let allowed = tenant.competes || (tenant.active == 0 && tenant.share.class != Class::Background);
        let within = tenant.spent_until <= self.now || tenant.ceiling().is_none();
        let lag = (best.estimate / 2).min(LAG_MAX);
        let behind = if context.tenant == best.tenant {
            context.v + virtual_time(lag, 1) < best.context_v
        } else {
            tenant.v + virtual_time(lag, best.weight) < best.v
        };
        allowed && within && behind
    }

    /// Returns until when a context that runs or thinks will have submitted again, if it is likely to.
    fn submits_until(&self, key: ContextKey, context: &Context) -> Option<Nanos> {
        let limit = context.habit.limit().filter(|_| self.patience.is_left());
        if !context.in_driver() {
            return context.last_completion.map(|at| at.saturating_add(limit.unwrap_or(0)));
        }
        if limit.is_none() && context.habit.is_known() {
            return None;
        }
        // Its submission has to end before it thinks; one that takes far longer than before is not waited for.
        let twice = context.estimate(&self.tuning).saturating_mul(2).saturating_add(MILLISECOND);
        self.units.of(key).next().map(|unit| unit.since.saturating_add(twice))
    }

    /// Returns whether a context has turns in which the scheduler waits for it, so that it need not run beside others.
    pub(super) fn has_turns(&self, key: ContextKey) -> bool {
        let habit = self.contexts.get(&key).map(|context| &context.habit);
        habit.is_none_or(|habit| !habit.is_known() || (self.patience.is_left() && habit.limit().is_some()))
    }
}

/// A context is waited for if it is behind by half of the grant that another would get instead, but not by less than this: a difference that does not
/// grow takes nothing from its share.
const LAG_MAX: Nanos = 4 * MILLISECOND;
