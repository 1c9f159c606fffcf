//! The scheduler of one GPU: start-time fair queueing of the submissions of several VMs.
//!
//! The VMs are *tenants*, each with several *contexts*, of which each has a worker process. Workers dispatch what they were granted;
//! two *units*, that is grants that have not completed, are in the driver at once, so that one runs while the next is staged. Tenants are
//! served in proportion to their weights, and the contexts of a tenant equally: each has a virtual time, which is the GPU time that it
//! was charged divided by its weight, and the one that is furthest behind comes next. It is charged an estimate in advance, and what
//! was measured afterwards.
//!
//! A context that is alone is given a *lease*: its worker need not ask until another has work.
//!
//! Knows no clock, no process and no memory: time is passed in, and so is what the workers say. They may say anything: nothing that a
//! worker says makes others lose their share, or the scheduler fail. Two things are taken as they are: a worker that was taken over can
//! say that submissions of a millisecond or less took no time, and longer ones a quarter of theirs, and can dispatch what was not granted
//! to it.
//!
//! | file | is |
//! | --- | --- |
//! | `tuning` | the constants |
//! | `tenant` | what is kept of tenants and contexts; virtual time |
//! | `units` | what is in the driver |
//! | `bill` | what work is charged |
//! | `timeline` | who used the GPU when |
//! | `window` | how much a tenant used lately |
//! | `pick` | who comes next |
//! | `habit` | how soon a program submits again |
//! | `wait` | idling for a context that will submit at once |
//! | `lease` | who need not ask |

#![forbid(unsafe_code)]

mod bill;
mod habit;
mod lease;
mod pick;
mod tenant;
mod timeline;
mod tuning;
mod units;
mod wait;
mod window;

#[cfg(test)]
mod tests;

pub use tuning::Tuning;

use lease::Alone;
use rustc_hash::FxHashMap;
use tenant::{Context, Tenant, Virtual, virtual_time};
use timeline::Timeline;
use units::Units;
use wait::Patience;

/// A point in time, or a time, in nanoseconds.
pub type Nanos = u64;

/// A VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u32);

/// A context of a VM; unique over all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextKey(pub u64);

/// The priority of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// The tenant gets its share.
    #[default]
    Normal,
    /// The tenant is served soon, as long as it uses no more than its share.
    Latency,
    /// The tenant gets what no other tenant wants.
    Background,
}

/// The share of the GPU that a tenant is to have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The weight: the tenant's part is this divided by the weights of all that have work. 1 to 10 000, default 100; what is outside counts
    /// as the nearest.
    pub weight: u32,
    /// The tenant's priority.
    pub class: Class,
    /// The part of the GPU that it may use of any 100 ms, even if nobody else does; above 0. A submission that alone takes more is
    /// granted all the same, and has to be made up for. Default none.
    pub ceiling: Option<f64>,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 100, class: Class::Normal, ceiling: None }
    }
}

/// The totals that a worker reports of its submissions. They are not trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Submissions that could be dispatched now and are not, granted or not.
    pub ready: u32,
    /// Submissions dispatched since the context began, wrapping.
    pub dispatched: u32,
    /// Submissions completed since the context began, wrapping.
    pub completed: u32,
}

/// GPU work that completed, as a worker measured it. It is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The begin, by the clock that the scheduler is told.
    pub begin: Nanos,
    /// The end, by the same clock.
    pub end: Nanos,
    /// The part of that time in which the GPU was busy, in nanoseconds.
    pub busy: Nanos,
    /// Submissions in it.
    pub count: u32,
    /// True if a copy engine did it, beside what computes.
    pub copy: bool,
}

/// An instruction to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The worker may dispatch more.
    Grant {
        /// The context whose worker may dispatch.
        context: ContextKey,
        /// Dispatches that it may have made since it began, wrapping.
        total: u32,
    },
    /// The worker need not ask any more.
    Lease(ContextKey),
    /// The worker has to ask again.
    Revoke(ContextKey),
}

/// The usage of a context or a tenant, and its work now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// GPU time charged, in nanoseconds.
    pub gpu: Nanos,
    /// Time of copy engines charged, in nanoseconds. It counts half against the share.
    pub copy: Nanos,
    /// Submissions completed.
    pub submissions: u64,
    /// Submissions that were dispatched and not granted. A worker that does so was taken over; nothing here can stop it.
    pub strays: u64,
    /// Time with work that could be dispatched and nothing in the driver, in nanoseconds.
    pub waiting: Nanos,
    /// Submissions in the driver.
    pub in_driver: u32,
    /// Submissions that could be dispatched now and are not.
    pub ready: u32,
    /// The earliest time at which the first of those in the driver can have run.
    pub running_since: Option<Nanos>,
    /// True if it need not ask.
    pub leased: bool,
}

impl Usage {
    /// Adds the usage of two GPUs.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            gpu: self.gpu.saturating_add(other.gpu),
            copy: self.copy.saturating_add(other.copy),
            submissions: self.submissions.saturating_add(other.submissions),
            strays: self.strays.saturating_add(other.strays),
            waiting: self.waiting.saturating_add(other.waiting),
            in_driver: self.in_driver.saturating_add(other.in_driver),
            ready: self.ready.saturating_add(other.ready),
            running_since: [self.running_since, other.running_since].into_iter().flatten().min(),
            leased: self.leased || other.leased,
        }
    }
}

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
    /// Smallest virtual time among the tenants that compete, when something was last granted; never falls.
    v: Virtual,
    /// The context whose submission was granted last.
    last: Option<ContextKey>,
    patience: Patience,
    alone: Alone,
    leased: Option<ContextKey>,
    next_look: Option<Nanos>,
}

impl Scheduler {
    /// Creates a scheduler of a GPU that nobody uses.
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

    /// Adds a tenant, or changes what it is to have; a new weight is as if it had always been, for what the tenant is behind or ahead.
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

    /// Removes a tenant that is gone, and its contexts with it.
    pub fn remove_tenant(&mut self, id: TenantId) {
        let contexts = self.tenants.get(&id).map(|tenant| tenant.contexts.clone());
        for context in contexts.unwrap_or_default() {
            self.end(context, self.now);
        }
        self.tenants.remove(&id);
    }

    /// Adds a context that begins, without work. Nothing happens if there is no such tenant, or already such a context.
    pub fn begin(&mut self, key: ContextKey, id: TenantId, now: Nanos) {
        self.passes(now);
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        if self.contexts.contains_key(&key) {
            return;
        }
        tenant.contexts.push(key);
        let context = Context { v: tenant.floor, ..Context::new(id, self.now) };
        self.contexts.insert(key, context);
    }

    /// Removes a context that is gone, with whatever it had in the driver.
    pub fn end(&mut self, key: ContextKey, now: Nanos) {
        self.passes(now);
        self.close_bill(key);
        self.units.remove(key);
        let Some(context) = self.contexts.remove(&key) else { return };
        if let Some(tenant) = self.tenants.get_mut(&context.tenant) {
            tenant.contexts.retain(|other| *other != key);
            tenant.active -= usize::from(context.active);
            let (in_driver, ready, running_since, leased) = Default::default();
            tenant.ended.add(&Usage { in_driver, ready, running_since, leased, ..context.usage(self.now) });
        }
        if self.leased == Some(key) {
            self.leased = None;
        }
        self.alone.changed(&self.contexts, self.now);
    }

    /// Takes over a worker's report, whenever that may have changed: its totals, and the spans that are new.
    pub fn see(&mut self, key: ContextKey, seen: Seen, spans: &[Span], now: Nanos) {
        self.passes(now);
        self.count(key, seen);
        for span in spans {
            self.bill(key, *span);
        }
        self.guess(key);
        self.refresh(key);
    }

    /// Decides what is to be done now. To be called after anything else was, and at [`Self::next_look`].
    pub fn decide(&mut self, now: Nanos) -> Vec<Order> {
        self.passes(now);
        self.next_look = None;
        self.charge_overdue();
        let mut orders = Vec::new();
        self.leases(&mut orders);
        for _ in 0..GRANTS_MAX {
            let Some(pick) = self.pick() else { break };
            orders.extend(self.grant(pick));
        }
        orders
    }

    /// Returns when [`Self::decide`] is to be called though nothing happens; `None` if never.
    #[must_use]
    pub fn next_look(&self) -> Option<Nanos> {
        self.next_look
    }

    /// Returns what a context has used.
    #[must_use]
    pub fn usage(&self, key: ContextKey) -> Option<Usage> {
        let context = self.contexts.get(&key)?;
        let running = self.units.of(key).next().map(|unit| unit.since);
        let usage = context.usage(self.now);
        Some(Usage { running_since: running.filter(|_| usage.in_driver > 0), ..usage })
    }

    /// Returns what the contexts of a tenant have used together, those that have ended included. Time in which several of them waited
    /// counts for each; running is since when the first of them runs.
    #[must_use]
    pub fn tenant_usage(&self, id: TenantId) -> Option<Usage> {
        let tenant = self.tenants.get(&id)?;
        let mut sum = tenant.ended;
        tenant.contexts.iter().filter_map(|key| self.usage(*key)).for_each(|usage| sum.add(&usage));
        Some(sum)
    }

    /// Returns whether another context has work that could be dispatched and is held back.
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

    /// Takes note of whether a context has work.
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

    /// Takes in a context of a tenant that has work again: it is not further behind than the others of the tenant, but for the credit.
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

impl Usage {
    fn add(&mut self, other: &Self) {
        self.gpu = self.gpu.saturating_add(other.gpu);
        self.copy = self.copy.saturating_add(other.copy);
        self.submissions = self.submissions.saturating_add(other.submissions);
        self.strays = self.strays.saturating_add(other.strays);
        self.waiting = self.waiting.saturating_add(other.waiting);
        self.in_driver = self.in_driver.saturating_add(other.in_driver);
        self.ready = self.ready.saturating_add(other.ready);
        let since = [self.running_since, other.running_since];
        self.running_since = since.into_iter().flatten().min();
        self.leased |= other.leased;
    }
}

const WEIGHT_MAX: u32 = 10_000;
/// The most grants of one decision: more than [`Scheduler::decide`] can find at once.
const GRANTS_MAX: usize = 8;
