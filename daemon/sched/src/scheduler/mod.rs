//! The scheduler of one GPU: it keeps the existing tenants and contexts, and notes the reports of their workers. Its steps are in the files of this
//! folder. Its quantities are beside the folder, in files that know no scheduler.

mod bill;
mod crowd;
mod lease;
mod pick;
mod resume;
mod wait;

#[cfg(test)]
mod tests;

pub use resume::Standing;

use super::alone::Alone;
use super::patience::Patience;
use super::share::WEIGHT_MAX;
use super::tenant::{Context, Tenant, Virtual, virtual_time};
use super::timeline::Timeline;
use super::units::Units;
use super::{ContextKey, Nanos, Order, Seen, Share, Span, TenantId, Tuning, Usage};
use rustc_hash::FxHashMap;

/// The scheduler of one GPU.
#[derive(Debug)]
pub struct Scheduler {
    tuning: Tuning,
    tenants: FxHashMap<TenantId, Tenant>,
    contexts: FxHashMap<ContextKey, Context>,
    units: Units,
    timeline: Timeline,
    /// The latest time that was passed in.
    now: Nanos,
    /// The smallest virtual time among the competing tenants at the last grant; never falls.
    v: Virtual,
    /// The context whose submission was granted last.
    last: Option<ContextKey>,
    patience: Patience,
    alone: Alone,
    leased: Option<ContextKey>,
    next_look: Option<Nanos>,
}

impl Scheduler {
    /// Creates a scheduler of a GPU that no context uses.
    #[must_use]
    pub fn new(tuning: Tuning) -> Self {
        Self {
            patience: Patience::new(&tuning),
            tuning,
            tenants: FxHashMap::default(),
            contexts: FxHashMap::default(),
            units: Units::default(),
            timeline: Timeline::default(),
            now: 0,
            v: 0,
            last: None,
            alone: Alone::default(),
            leased: None,
            next_look: None,
        }
    }

    /// Changes [`Tuning::anticipation`]. Saved-up idle time beyond the new part is lost.
    pub fn set_anticipation(&mut self, part: f64) {
        self.tuning.anticipation = part;
        self.patience.accrue(0, &self.tuning);
    }

    /// Adds a tenant, or changes its share. The GPU time by which it is behind or ahead counts as if it had always had the new weight.
    pub fn set_tenant(&mut self, id: TenantId, mut share: Share, now: Nanos) {
        self.passes(now);
        share.weight = share.weight.clamp(1, WEIGHT_MAX);
        share.ceiling = share.ceiling.filter(|ceiling| *ceiling < 1.0);
        let v = self.v;
        let Some(tenant) = self.tenants.get_mut(&id) else {
            let tenant = Tenant { v, ..Tenant::new(share, &self.tuning) };
            self.tenants.insert(id, tenant);
            return;
        };
        let old = std::mem::replace(&mut tenant.share, share);
        tenant.v = v + (tenant.v - v) * Virtual::from(old.weight) / Virtual::from(share.weight);
        if old.ceiling != share.ceiling {
            tenant.spent_until = tenant.spent_until.min(self.now);
        }
    }

    /// Removes a tenant that is gone, together with its contexts. Returns their usage; none if there is no such tenant.
    pub fn remove_tenant(&mut self, id: TenantId) -> Option<Usage> {
        let contexts = self.tenants.get(&id).map(|tenant| tenant.contexts.clone());
        for context in contexts.unwrap_or_default() {
            self.end(context, self.now);
        }
        self.tenants.remove(&id).map(|tenant| tenant.ended)
    }

    /// Adds a context that begins, without work. Does nothing if the tenant does not exist, or the context already exists.
    pub fn begin(&mut self, key: ContextKey, id: TenantId, now: Nanos) {
        self.passes(now);
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        if self.contexts.contains_key(&key) {
            return;
        }
        tenant.contexts.push(key);
        let leased = self.tuning.leases_for_all;
        let context = Context { v: tenant.floor, leased, ..Context::new(id, self.now) };
        self.contexts.insert(key, context);
    }

    /// Removes a context that is gone, with all its submissions in the driver. Returns its usage; none if there is no such context.
    pub fn end(&mut self, key: ContextKey, now: Nanos) -> Option<Usage> {
        self.passes(now);
        self.close_bill(key);
        self.units.remove(key);
        let context = self.contexts.remove(&key)?;
        let (in_driver, ready, running_since, leased) = Default::default();
        let usage = Usage { in_driver, ready, running_since, leased, ..context.usage(self.now) };
        if let Some(tenant) = self.tenants.get_mut(&context.tenant) {
            tenant.contexts.retain(|other| *other != key);
            tenant.active -= usize::from(context.active);
            tenant.ended.add(&usage);
        }
        if self.leased == Some(key) {
            self.leased = None;
        }
        self.alone.changed(&self.contexts, self.now);
        Some(usage)
    }

    /// Takes over a worker's report, which is its totals and the new spans, whenever the report may have changed.
    pub fn see(&mut self, key: ContextKey, seen: Seen, spans: &[Span], now: Nanos) {
        self.passes(now);
        self.count(key, seen);
        let early = self.contexts.get_mut(&key).and_then(|context| context.early.take());
        for span in early.iter().chain(spans) {
            self.bill(key, *span);
        }
        self.guess(key);
        self.refresh(key);
    }

    /// Returns the orders that are due now. Call it after any other method, and at [`Self::next_look`].
    pub fn decide(&mut self, now: Nanos) -> Vec<Order> {
        self.passes(now);
        self.next_look = None;
        self.charge_overdue();
        self.note_surprises();
        let mut orders = Vec::new();
        self.leases(&mut orders);
        for _ in 0..GRANTS_MAX {
            let Some(pick) = self.pick() else { break };
            orders.extend(self.grant(pick));
        }
        orders
    }

    /// Returns whether the scheduler grants submissions; otherwise it only counts them ([`Tuning::leases_for_all`]).
    #[must_use]
    pub fn shares_out(&self) -> bool {
        !self.tuning.leases_for_all
    }

    /// Returns the time at which to call [`Self::decide`] even if nothing happens; `None` if never.
    #[must_use]
    pub fn next_look(&self) -> Option<Nanos> {
        self.next_look
    }

    /// Returns the usage of a context.
    #[must_use]
    pub fn usage(&self, key: ContextKey) -> Option<Usage> {
        let context = self.contexts.get(&key)?;
        let running = self.units.of(key).next().map(|unit| unit.since);
        let usage = context.usage(self.now);
        Some(Usage { running_since: running.filter(|_| usage.in_driver > 0), ..usage })
    }

    /// Returns the usage of all contexts of a tenant together, including ended ones. Time in which several contexts waited counts for each. Running
    /// counts since the first of them began to run.
    #[must_use]
    pub fn tenant_usage(&self, id: TenantId) -> Option<Usage> {
        let tenant = self.tenants.get(&id)?;
        let mut sum = tenant.ended;
        tenant.contexts.iter().filter_map(|key| self.usage(*key)).for_each(|usage| sum.add(&usage));
        Some(sum)
    }

    /// Returns whether another context has work that could be dispatched but is held back.
    #[must_use]
    pub fn others_wait(&self, key: ContextKey) -> bool {
        self.contexts.iter().any(|(other, context)| *other != key && context.held_back() > 0)
    }

    /// Lets time pass; it never goes back.
    fn passes(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        self.patience.accrue(passed, &self.tuning);
    }

    /// Notes whether a context has work.
    fn refresh(&mut self, key: ContextKey) {
        let now = self.now;
        let Some(context) = self.contexts.get_mut(&key) else { return };
        let waits = context.held_back() > 0 && !context.in_driver();
        if !waits && let Some(since) = context.waits_since.take() {
            context.bill.waiting = context.bill.waiting.saturating_add(now.saturating_sub(since));
        } else if waits {
            context.waits_since.get_or_insert(now);
        }
        let has_work = context.has_work();
        let Some(tenant) = self.tenants.get_mut(&context.tenant) else { return };
        let worked = tenant.worked;
        if has_work || context.active {
            tenant.worked = Some(now);
        }
        if std::mem::replace(&mut context.active, has_work) == has_work {
            return;
        }
        if has_work {
            let gap = context.thought(now);
            if tenant.active == 0 {
                tenant.paused = worked.is_some_and(|at| now.saturating_sub(at) <= self.tuning.pause);
            }
            tenant.active += 1;
            self.joins(key, gap <= self.tuning.pause);
        } else {
            tenant.active -= 1;
        }
        self.alone.changed(&self.contexts, now);
    }

    /// Takes in a context that has work again: it may be behind its tenant's other contexts only by the credit.
    fn joins(&mut self, key: ContextKey, paused: bool) {
        let Some(id) = self.contexts.get(&key).map(|context| context.tenant) else { return };
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let others = tenant.contexts.iter().filter(|other| **other != key);
        let others = others.filter_map(|other| self.contexts.get(other)).filter(|other| other.active);
        if let Some(least) = others.map(|other| other.v - virtual_time(other.pending.amount, 1)).min() {
            tenant.floor = tenant.floor.max(least);
        }
        let credit = if paused { self.tuning.credit_paused } else { self.tuning.credit };
        let floor = tenant.floor - virtual_time(credit, 1);
        if let Some(context) = self.contexts.get_mut(&key) {
            context.v = context.v.max(floor);
        }
    }

    /// Sets the time of the next look, if it is not earlier already.
    fn look_at(&mut self, at: Nanos) {
        let at = at.max(self.now.saturating_add(1));
        self.next_look = Some(self.next_look.map_or(at, |earlier| earlier.min(at)));
    }
}

/// The most grants of one decision: more than [`Scheduler::decide`] can find at once.
const GRANTS_MAX: usize = 8;
