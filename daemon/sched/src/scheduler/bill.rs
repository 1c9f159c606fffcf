//! The charges for work: an estimate when it is granted, the measured time when it has completed, and a guess if it was not measured.
//!
//! A charge moves the virtual times. The measured or guessed time is also billed: it counts for the tenant's usage and
//! ceiling.

use super::Scheduler;
use crate::tenant::{Charge, virtual_time};
use crate::{ContextKey, Nanos, Seen, Span};

impl Scheduler {
    /// Takes over a worker's totals.
    pub(super) fn count(&mut self, key: ContextKey, seen: Seen) {
        let now = self.now;
        let Some(context) = self.contexts.get_mut(&key) else { return };
        let before = std::mem::replace(&mut context.seen_at, now);
        let (leased, disbelieved) = context.dispatches(seen, now);
        context.ready = seen.ready;
        context.bill.strays = context.bill.strays.saturating_add(u64::from(disbelieved));
        let time = context.expected(&self.tuning);
        let each = time.max(self.tuning.floor);
        let completed = context.completions(seen);
        if leased > 0 {
            self.advance(key, leased, each, before);
            self.units.add_leased(key, leased, time, before);
        }
        self.charge(key, each.saturating_mul(2 * u64::from(disbelieved.min(DISBELIEVED_MAX))));
        if completed > 0 {
            self.complete(key, completed);
        }
    }

    fn complete(&mut self, key: ContextKey, count: u32) {
        let now = self.now;
        let overtakes = self.units.overtakes(key);
        if overtakes {
            self.timeline.overtaken();
        }
        let since = self.units.complete(key, count, now).unwrap_or((now, now));
        let Some(context) = self.contexts.get_mut(&key) else { return };
        context.bill.submissions = context.bill.submissions.saturating_add(u64::from(count));
        context.last_completion = Some(now);
        context.is_fresh = false;
        let held = match now.saturating_sub(since.1) {
            // A context with a lease keeps no other context from the GPU.
            _ if context.leased => 0,
            // The two contexts ran alternately.
            ran if overtakes => ran / 2,
            ran => ran,
        };
        context.unbilled = Charge { count, amount: held };
        context.ran_since = since;
        if let Some(tenant) = self.tenants.get_mut(&context.tenant) {
            tenant.doubt.earns(held, &self.tuning);
        }
    }

    /// Charges `count` submissions an estimate in advance; the worker dispatches them no earlier than `since`.
    pub(super) fn advance(&mut self, key: ContextKey, count: u32, each: Nanos, since: Nanos) {
        let Some(context) = self.contexts.get_mut(&key) else { return };
        if context.pending.count == 0 && context.guessed.count == 0 {
            context.computed_until = context.computed_until.max(since);
            context.copied_until = context.copied_until.max(since);
        }
        self.charge_in_advance(key, Charge { count, amount: each.saturating_mul(u64::from(count)) });
    }

    fn charge_in_advance(&mut self, key: ContextKey, charge: Charge) {
        let Some(context) = self.contexts.get_mut(&key) else { return };
        context.pending.add(charge);
        if let Some(tenant) = self.tenants.get_mut(&context.tenant) {
            tenant.advance = tenant.advance.saturating_add(charge.amount);
        }
        self.charge(key, charge.amount);
    }

    /// Gives back the advance charge of `count` submissions.
    fn return_advance(&mut self, key: ContextKey, count: u32) {
        let Some(context) = self.contexts.get_mut(&key) else { return };
        let amount = context.pending.take(count).amount;
        if let Some(tenant) = self.tenants.get_mut(&context.tenant) {
            tenant.advance = tenant.advance.saturating_sub(amount);
        }
        self.uncharge(key, amount);
    }

    /// Bills a span, and gives back the advance charge of its submissions. A span of unknown submissions counts for nothing,
    /// and so does a span that cannot be true.
    pub(super) fn bill(&mut self, key: ContextKey, span: Span) {
        if span.end > self.now.saturating_add(self.tuning.clock_error) || span.begin > span.end {
            return;
        }
        if span.count == 0 {
            // Work outside of submissions, such as clearing memory, needs no grant.
            self.computed(key, span, 0);
            return;
        }
        let Some(context) = self.contexts.get_mut(&key) else { return };
        let new = context.unbilled.count.min(span.count);
        let late = context.guessed.count.min(span.count - new);
        if new + late == 0 {
            // The scheduler looks at the span again when the submissions have completed.
            context.early = Some(span).filter(|_| context.dispatched != context.completed);
            return;
        }
        if new > 0 && !self.is_believed(key, span, new) {
            return;
        }
        let Some(context) = self.contexts.get_mut(&key) else { return };
        context.unbilled.take(new);
        let guessed = context.guessed.take(late).amount;
        self.return_advance(key, new);
        self.refund(key, guessed);
        let count = new + late;
        let time = if span.copy { self.copied(key, span, count) } else { self.computed(key, span, count) };
        if let Some(context) = self.contexts.get_mut(&key) {
            context.learn(time / u64::from(count));
        }
    }

    /// Returns whether a span accounts for enough of the time for which the `new` submissions, which just completed, held the GPU. If not, they are
    /// charged like submissions without a span.
    fn is_believed(&mut self, key: ContextKey, span: Span, new: u32) -> bool {
        let Some(context) = self.contexts.get(&key) else { return false };
        let Some(tenant) = self.tenants.get_mut(&context.tenant) else { return false };
        let after = if span.copy { context.copied_until } else { context.computed_until };
        let (_, _, busy) = clamp(span, after, self.now);
        let mut unbilled = context.unbilled;
        context.leased || tenant.doubt.believes(unbilled.take(new).amount, busy, &self.tuning)
    }

    /// Bills a span of computing. Returns the time that it took.
    fn computed(&mut self, key: ContextKey, span: Span, count: u32) -> Nanos {
        let Some(context) = self.contexts.get_mut(&key) else { return 0 };
        let (begin, end, busy) = clamp(span, context.computed_until, self.now);
        context.computed_until = context.computed_until.max(end);
        let time = self.shared(key, begin, end, busy, self.tuning.slice);
        self.charge_and_bill(key, time.max(self.least(count)));
        time
    }

    /// Returns the part of a span in which the context had the GPU beside others, and corrects the bills of those.
    fn shared(&mut self, key: ContextKey, begin: Nanos, end: Nanos, busy: Nanos, slice: Nanos) -> Nanos {
        let cost = self.timeline.add(key, begin, end, busy, slice);
        for (other, amount) in cost.refunds {
            self.refund(other, amount);
        }
        for (other, amount) in cost.dues {
            self.charge_and_bill(other, amount);
        }
        cost.own
    }

    /// Bills a span of copying. Returns the time that it took.
    fn copied(&mut self, key: ContextKey, span: Span, count: u32) -> Nanos {
        let Some(context) = self.contexts.get_mut(&key) else { return 0 };
        let (_, end, busy) = clamp(span, context.copied_until, self.now);
        context.copied_until = context.copied_until.max(end);
        context.bill.copy = context.bill.copy.saturating_add(busy);
        let amount = busy.max(self.least(count));
        self.charge(key, amount);
        self.count_use(key, amount);
        busy
    }

    /// Bills the submissions that completed and have no span, by the time for which they were the first in the driver.
    pub(super) fn guess(&mut self, key: ContextKey) {
        let now = self.now;
        let Some(context) = self.contexts.get_mut(&key) else { return };
        if now.saturating_sub(context.guessed_since) >= self.tuning.late_span {
            context.guessed = Charge::default();
        }
        let count = std::mem::take(&mut context.unbilled).count;
        if count == 0 {
            return;
        }
        let (granted, since) = context.ran_since;
        let mut time = now.saturating_sub(since);
        if self.timeline.is_sliced() {
            // The context ran beside others, so the others did not have all of the time that they were billed.
            let begin = granted.max(context.computed_until).min(now);
            time = self.shared(key, begin, now, now - begin, 0);
        }
        let Some(context) = self.contexts.get_mut(&key) else { return };
        let amount = time.max(self.tuning.floor.saturating_mul(u64::from(count)));
        // Behind a short unit the next one is not staged, and starts late.
        let amount = if amount < self.tuning.bundle { amount + self.tuning.start } else { amount };
        if context.guessed.count == 0 {
            context.guessed_since = now;
        }
        if context.leased {
            // A worker with a lease reports only now and then, with many spans at once.
            context.guessed.add(Charge { count, amount });
        }
        context.learn(time / u64::from(count));
        self.return_advance(key, count);
        self.charge_and_bill(key, amount);
    }

    /// Charges units that run far longer than expected, for their part of that time.
    pub(super) fn charge_overdue(&mut self) {
        let now = self.now;
        let sharers = u64::try_from(self.units.0.len()).unwrap_or(1).max(1);
        for index in 0..self.units.0.len() {
            let unit = &mut self.units.0[index];
            let key = unit.context;
            let had = now.saturating_sub(unit.since) / sharers;
            let more = had.saturating_sub(unit.estimate().saturating_add(unit.surcharge));
            let pending = self.contexts.get(&key).is_some_and(|context| context.pending.count > 0);
            if more > 0 && pending {
                unit.surcharge = unit.surcharge.saturating_add(more);
                self.charge_in_advance(key, Charge { count: 0, amount: more });
            }
        }
    }

    /// Bills the submissions in the driver of a context that is about to end, by the time for which they have been there.
    pub(super) fn close_bill(&mut self, key: ContextKey) {
        let since = self.units.of(key).next().map_or(self.now, |unit| unit.since);
        let first = self.units.0.first().is_some_and(|unit| unit.context == key);
        let Some(context) = self.contexts.get_mut(&key) else { return };
        let ran = self.now.saturating_sub(since);
        let time = if first { ran } else { ran.min(context.pending.amount) };
        self.return_advance(key, u32::MAX);
        self.charge_and_bill(key, time);
    }

    fn charge_and_bill(&mut self, key: ContextKey, amount: Nanos) {
        self.charge(key, amount);
        if let Some(context) = self.contexts.get_mut(&key) {
            context.bill.gpu = context.bill.gpu.saturating_add(amount);
        }
        self.count_use(key, amount);
    }

    fn count_use(&mut self, key: ContextKey, amount: Nanos) {
        let tenant = self.contexts.get(&key).map(|context| context.tenant);
        if let Some(tenant) = tenant.and_then(|id| self.tenants.get_mut(&id)) {
            tenant.used(amount, &self.tuning, self.now);
        }
    }

    /// Refunds an amount that a context was billed too much.
    fn refund(&mut self, key: ContextKey, amount: Nanos) {
        self.uncharge(key, amount);
        let Some(context) = self.contexts.get_mut(&key) else { return };
        context.bill.gpu = context.bill.gpu.saturating_sub(amount);
        if let Some(tenant) = self.tenants.get_mut(&context.tenant) {
            tenant.refund(amount);
        }
    }

    pub(super) fn charge(&mut self, key: ContextKey, amount: Nanos) {
        let Some(context) = self.contexts.get_mut(&key) else { return };
        context.v += virtual_time(amount, 1);
        if let Some(tenant) = self.tenants.get_mut(&context.tenant) {
            tenant.v += virtual_time(amount, tenant.share.weight);
        }
    }

    fn uncharge(&mut self, key: ContextKey, amount: Nanos) {
        let Some(context) = self.contexts.get_mut(&key) else { return };
        context.v -= virtual_time(amount, 1);
        if let Some(tenant) = self.tenants.get_mut(&context.tenant) {
            tenant.v -= virtual_time(amount, tenant.share.weight);
        }
    }

    /// Returns the least amount that `count` submissions are charged.
    fn least(&self, count: u32) -> Nanos {
        self.tuning.floor.saturating_mul(u64::from(count))
    }
}

/// Returns the part of a span that can be true, between the end of the billed time and now, and the busy time in that part.
fn clamp(span: Span, after: Nanos, now: Nanos) -> (Nanos, Nanos, Nanos) {
    let end = span.end.min(now);
    let begin = span.begin.max(after).min(end);
    let length = span.end.saturating_sub(span.begin);
    if length == 0 {
        return (begin, end, 0);
    }
    let busy = u128::from(span.busy.min(length)) * u128::from(end - begin) / u128::from(length);
    (begin, end, u64::try_from(busy).unwrap_or(Nanos::MAX))
}

/// Dispatches without a grant are charged twice, at most so many at once, so that one wrong total does not keep a VM out for years.
const DISBELIEVED_MAX: u32 = 1000;
