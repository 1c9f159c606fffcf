//! Waiting for a context that is likely to submit again at once. A context that submits when its last work has completed would otherwise wait for a
//! whole long unit of another each time. The scheduler charges the idle GPU time to the context for which it waits, so that others lose nothing by
//! it, and bounds the sum of all waits.

use super::Scheduler;
use super::pick::Candidate;
use crate::tenant::{Context, virtual_time};
use crate::time::MILLISECOND;
use crate::{Class, ContextKey, Nanos};

impl Scheduler {
    /// Returns whether to make no grant now because a context that should come before `best` will submit at once.
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

    /// Ends the wait, unless it is for `except`: the awaited context pays.
    pub(super) fn settle_wait(&mut self, except: Option<ContextKey>) {
        if let Some((key, idle)) = self.patience.over(except, self.now, self.tuning.start) {
            self.charge(key, idle);
        }
    }

    /// Returns whether a context has no submission to grant and would come well before `best` if it had one.
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

    /// Returns the time until which a context that runs or thinks will have submitted again, if that is likely.
    fn submits_until(&self, key: ContextKey, context: &Context) -> Option<Nanos> {
        let limit = context.habit.limit().filter(|_| self.patience.is_left());
        if !context.in_driver() {
            return context.last_completion.map(|at| at.saturating_add(limit.unwrap_or(0)));
        }
        if limit.is_none() && context.habit.is_known() {
            return None;
        }
        // The program thinks only after its submission has ended; the scheduler does not wait for a submission that takes far longer than before.
        let twice = context.estimate(&self.tuning).saturating_mul(2).saturating_add(MILLISECOND);
        self.units.of(key).next().map(|unit| unit.since.saturating_add(twice))
    }

    /// Returns whether the scheduler waits for this context, so that the context need not run beside others.
    pub(super) fn has_turns(&self, key: ContextKey) -> bool {
        let habit = self.contexts.get(&key).map(|context| &context.habit);
        habit.is_none_or(|habit| !habit.is_known() || (self.patience.is_left() && habit.limit().is_some()))
    }
}

/// The bound on the lag that a context needs so that the scheduler waits for it. The lag is half of the grant that another context would get instead,
/// but at most this: a difference that does not grow takes nothing from a share.
const LAG_MAX: Nanos = 4 * MILLISECOND;
