//! The scheduler's records of a tenant and its contexts, and the virtual time that orders them.

use super::doubt::Doubt;
use super::habit::Habit;
use super::time::{SECOND, scaled};
use super::window::Window;
use super::{Class, ContextKey, Nanos, Seen, Share, Span, TenantId, Tuning, Usage};

/// GPU time divided by weight, in 2^-20 ns: exact for weights up to 10 000. It never overflows, even if a worker lies.
pub(super) type Virtual = i128;

/// Virtual time of one nanosecond at weight 1.
const UNIT: Virtual = 1 << 20;

/// Returns the virtual time of so much GPU time at this weight.
pub(super) fn virtual_time(time: Nanos, weight: u32) -> Virtual {
    Virtual::from(time) * UNIT / Virtual::from(weight.max(1))
}

#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) share: Share,
    pub(super) v: Virtual,
    /// Smallest virtual time among its active contexts so far.
    pub(super) floor: Virtual,
    pub(super) contexts: Vec<ContextKey>,
    /// The number of contexts that have work.
    pub(super) active: usize,
    /// True if it competed with other tenants when last looked at: it has work, and is not held back by a ceiling or its class.
    pub(super) competes: bool,
    /// The time at which the tenant last had work.
    pub(super) worked: Option<Nanos>,
    /// True if the tenant was without work for so short a time that it keeps the time by which it is behind.
    pub(super) paused: bool,
    /// The amounts that the tenant was charged lately, and in advance.
    pub(super) window: Window,
    pub(super) advance: Nanos,
    /// The time until which the tenant has used up its ceiling in the long run.
    pub(super) spent_until: Nanos,
    /// The time until which the tenant counts as one whose submissions take far longer than expected.
    pub(super) surprised_until: Nanos,
    /// The time that its workers may leave unexplained.
    pub(super) doubt: Doubt,
    /// The usage of its contexts that have ended.
    pub(super) ended: Usage,
}

#[derive(Debug)]
pub(super) struct Context {
    pub(super) tenant: TenantId,
    pub(super) v: Virtual,
    pub(super) active: bool,
    /// The believed totals of the context's submissions.
    pub(super) granted: u32,
    pub(super) dispatched: u32,
    pub(super) completed: u32,
    /// The amount by which the worker's totals are ahead of these, because the excess is not believed.
    pub(super) skew: u32,
    /// Submissions that could be dispatched, including granted ones.
    pub(super) ready: u32,
    /// Submissions that were charged in advance and are not billed.
    pub(super) pending: Charge,
    /// Submissions that completed just now and have no span yet, and the time for which they held the GPU; and since when the first of them ran.
    pub(super) unbilled: Charge,
    pub(super) ran_since: (Nanos, Nanos),
    /// Submissions that completed during a lease and were charged by guess, since no span has come yet; and since when there are any.
    pub(super) guessed: Charge,
    pub(super) guessed_since: Nanos,
    /// A span that came before the completion of its submissions.
    pub(super) early: Option<Span>,
    /// The earliest begin of spans that are still to come: of computing, of copying.
    pub(super) computed_until: Nanos,
    pub(super) copied_until: Nanos,
    /// The average time of one submission.
    pub(super) estimate: Option<Nanos>,
    /// The lengths of the gaps between a completion and the next submission.
    pub(super) habit: Habit,
    /// The amount that the context had been billed when it was last without work.
    pub(super) billed: Nanos,
    /// True while no submission has completed since the context was without work.
    pub(super) is_fresh: bool,
    pub(super) last_completion: Option<Nanos>,
    pub(super) seen_at: Nanos,
    pub(super) waits_since: Option<Nanos>,
    pub(super) leased: bool,
    /// The time until which the worker may dispatch submissions that were not granted.
    pub(super) trusted_until: Nanos,
    pub(super) bill: Usage,
}

/// Submissions and their charge together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Charge {
    pub(super) count: u32,
    pub(super) amount: Nanos,
}

impl Charge {
    pub(super) fn add(&mut self, other: Charge) {
        self.count = self.count.saturating_add(other.count);
        self.amount = self.amount.saturating_add(other.amount);
    }

    /// Takes up to `count` submissions out, with their part of the amount.
    pub(super) fn take(&mut self, count: u32) -> Charge {
        if count >= self.count {
            return std::mem::take(self);
        }
        let amount = u128::from(self.amount) * u128::from(count) / u128::from(self.count);
        let amount = u64::try_from(amount).unwrap_or(self.amount);
        self.count -= count;
        self.amount -= amount;
        Charge { count, amount }
    }
}

impl Tenant {
    pub(super) fn new(share: Share, tuning: &Tuning) -> Self {
        Self {
            share,
            v: 0,
            floor: 0,
            contexts: Vec::new(),
            active: 0,
            competes: false,
            worked: None,
            paused: false,
            window: Window::new(tuning.window),
            advance: 0,
            spent_until: 0,
            surprised_until: 0,
            doubt: Doubt::new(tuning),
            ended: Usage::default(),
        }
    }

    /// Returns the virtual time that the tenant may catch up on after it had no work.
    pub(super) fn credit(&self, tuning: &Tuning) -> Virtual {
        let credit = match self.share.class {
            _ if self.paused => tuning.credit_paused,
            Class::Latency => tuning.credit_latency,
            Class::Normal | Class::Background => tuning.credit,
        };
        virtual_time(credit, self.share.weight)
    }

    /// Adds GPU time that was measured.
    pub(super) fn used(&mut self, time: Nanos, tuning: &Tuning, now: Nanos) {
        self.window.add(time, now);
        if let Some(ceiling) = self.ceiling() {
            let since = self.spent_until.max(now.saturating_sub(tuning.window));
            self.spent_until = since.saturating_add(scaled(time, 1.0 / ceiling));
        }
    }

    /// Refunds GPU time that the tenant was charged too much.
    pub(super) fn refund(&mut self, time: Nanos) {
        self.window.refund(time);
        if let Some(ceiling) = self.ceiling() {
            self.spent_until = self.spent_until.saturating_sub(scaled(time, 1.0 / ceiling));
        }
    }

    /// Returns the time at which the ceiling allows the tenant so much more GPU time; `None` if a submission has to complete before.
    pub(super) fn allowed_at(&mut self, time: Nanos, tuning: &Tuning, now: Nanos) -> Option<Nanos> {
        let Some(ceiling) = self.ceiling() else { return Some(now) };
        let limit = scaled(tuning.window, ceiling);
        let room = limit.saturating_sub(time).saturating_sub(self.advance);
        if limit < time.saturating_add(self.advance) && self.advance > 0 {
            return None;
        }
        Some(self.window.falls_to(room, now).max(self.spent_until))
    }

    /// Returns the ceiling, if the tenant has one.
    pub(super) fn ceiling(&self) -> Option<f64> {
        self.share.ceiling.filter(|ceiling| *ceiling < 1.0).map(|ceiling| ceiling.max(0.001))
    }
}

impl Context {
    pub(super) fn new(tenant: TenantId, now: Nanos) -> Self {
        Self {
            tenant,
            v: 0,
            active: false,
            granted: 0,
            dispatched: 0,
            completed: 0,
            skew: 0,
            ready: 0,
            pending: Charge::default(),
            unbilled: Charge::default(),
            ran_since: (now, now),
            guessed: Charge::default(),
            guessed_since: now,
            early: None,
            computed_until: now,
            copied_until: now,
            estimate: None,
            habit: Habit::default(),
            billed: 0,
            is_fresh: false,
            last_completion: None,
            seen_at: now,
            waits_since: None,
            leased: false,
            trusted_until: 0,
            bill: Usage::default(),
        }
    }

    /// Returns the number of submissions that could be dispatched if they were granted.
    pub(super) fn held_back(&self) -> u32 {
        if self.leased {
            return 0;
        }
        self.ready.saturating_sub(self.granted.wrapping_sub(self.dispatched))
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready > 0 && (self.leased || self.held_back() > 0)
    }

    /// Returns whether the driver has a submission of this context, or will have.
    pub(super) fn in_driver(&self) -> bool {
        self.granted != self.completed
    }

    pub(super) fn has_work(&self) -> bool {
        self.is_ready() || self.in_driver()
    }

    /// Returns the time that one submission is expected to take.
    pub(super) fn expected(&self, tuning: &Tuning) -> Nanos {
        self.estimate.unwrap_or(tuning.first_estimate)
    }

    /// Returns the amount that one submission is expected to be charged.
    pub(super) fn estimate(&self, tuning: &Tuning) -> Nanos {
        self.expected(tuning).max(tuning.floor)
    }

    /// Returns whether the worker dispatches without asking, or may not have noticed yet that it has to ask.
    pub(super) fn is_trusted(&self, now: Nanos) -> bool {
        self.leased || now < self.trusted_until
    }

    /// Takes over the worker's count of dispatches. Returns how many of the new dispatches without a grant are believed, and how many are not.
    pub(super) fn dispatches(&mut self, seen: Seen, now: Nanos) -> (u32, u32) {
        let said = forward(seen.dispatched.wrapping_sub(self.skew), self.dispatched);
        let allowed = self.granted.wrapping_sub(self.dispatched);
        let excess = said.saturating_sub(allowed);
        if excess > 0 && self.is_trusted(now) {
            self.dispatched = self.dispatched.wrapping_add(said);
            self.granted = self.dispatched;
            return (excess, 0);
        }
        self.dispatched = self.dispatched.wrapping_add(said - excess);
        self.skew = self.skew.wrapping_add(excess);
        (0, excess)
    }

    /// Takes over the worker's count of completions. Returns the number of new completions.
    pub(super) fn completions(&mut self, seen: Seen) -> u32 {
        let said = forward(seen.completed.wrapping_sub(self.skew), self.completed);
        let new = said.min(self.dispatched.wrapping_sub(self.completed));
        self.completed = self.completed.wrapping_add(new);
        new
    }

    /// Learns from the time that one submission took.
    pub(super) fn learn(&mut self, time: Nanos) {
        let time = time.min(ESTIMATE_MAX);
        self.estimate = Some(self.estimate.map_or(time, |average| (3 * average + time) / 4));
    }

    /// Notes that the context has work after it had none. Returns the time for which it had none.
    pub(super) fn thought(&mut self, now: Nanos) -> Nanos {
        let Some(last) = self.last_completion else { return Nanos::MAX };
        self.is_fresh = true;
        let (gap, before) = (now.saturating_sub(last), std::mem::replace(&mut self.billed, self.bill.gpu));
        self.habit.note(gap, self.bill.gpu.saturating_sub(before));
        gap
    }

    /// Returns the context's usage up to now.
    pub(super) fn usage(&self, now: Nanos) -> Usage {
        let waits = self.waits_since.map_or(0, |since| now.saturating_sub(since));
        Usage {
            waiting: self.bill.waiting.saturating_add(waits),
            in_driver: self.dispatched.wrapping_sub(self.completed),
            ready: self.ready,
            leased: self.leased,
            ..self.bill
        }
    }
}

/// The longest time of a submission that is learned; longer times count as this one.
const ESTIMATE_MAX: Nanos = 100 * SECOND;

/// Returns the distance by which a wrapping total has moved on; 0 if it seems to have moved back.
fn forward(to: u32, from: u32) -> u32 {
    let moved = to.wrapping_sub(from);
    if moved <= u32::MAX / 2 { moved } else { 0 }
}
