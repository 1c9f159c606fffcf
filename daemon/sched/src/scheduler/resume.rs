//! A scheduler that goes on where another one stopped: it takes over the accounts, and the submissions in the driver.

use super::Scheduler;
use crate::{ContextKey, Nanos, TenantId, Usage};

/// A context as one scheduler leaves it to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Dispatches that are allowed so far, as the worker counts them, wrapping.
    pub granted: u32,
    /// Submissions completed so far, as the worker counts them, wrapping.
    pub completed: u32,
    /// True if the worker need not ask, and may not have noticed yet that it has to ask from now on.
    pub leased: bool,
    /// The usage so far; submissions in the driver are in the counters above.
    pub used: Usage,
}

impl Scheduler {
    /// Returns a context as another scheduler can take it over ([`Self::resume`]).
    #[must_use]
    pub fn standing(&self, key: ContextKey) -> Option<Standing> {
        let context = self.contexts.get(&key)?;
        Some(Standing {
            granted: context.granted.wrapping_add(context.skew),
            completed: context.completed.wrapping_add(context.skew),
            leased: context.is_trusted(self.now),
            used: settled(context.usage(self.now)),
        })
    }

    /// Returns the usage of a tenant's ended contexts.
    #[must_use]
    pub fn ended(&self, id: TenantId) -> Option<Usage> {
        self.tenants.get(&id).map(|tenant| tenant.ended)
    }

    /// Takes over the usage of a tenant's ended contexts. Does nothing if the tenant does not exist.
    pub fn resume_tenant(&mut self, id: TenantId, ended: Usage) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.ended = settled(ended);
        }
    }

    /// Adds a context that another scheduler had. Its submissions in the driver count from now on. Does nothing if the tenant does not exist, or the
    /// context already exists.
    pub fn resume(&mut self, key: ContextKey, id: TenantId, standing: Standing, now: Nanos) {
        if self.contexts.contains_key(&key) {
            return;
        }
        self.begin(key, id, now);
        let Some(context) = self.contexts.get_mut(&key) else { return };
        (context.granted, context.bill) = (standing.granted, settled(standing.used));
        (context.dispatched, context.completed) = (standing.completed, standing.completed);
        if standing.leased {
            context.trusted_until = self.now.saturating_add(self.tuning.revoke_grace);
        }
        let in_driver = standing.granted.wrapping_sub(standing.completed);
        let time = context.expected(&self.tuning);
        if in_driver > 0 {
            self.advance(key, in_driver, time.max(self.tuning.floor), now);
            self.units.add_leased(key, in_driver, time, now);
        }
        self.refresh(key);
    }
}

/// Returns an account without the values that hold only for the moment.
fn settled(usage: Usage) -> Usage {
    Usage { in_driver: 0, ready: 0, running_since: None, leased: false, ..usage }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Order, Seen, Share, Span, Tuning};

    const VM: TenantId = TenantId(3);
    const KEY: ContextKey = ContextKey(7);
    const MS: Nanos = 1_000_000;

    fn scheduler() -> Scheduler {
        let mut scheduler = Scheduler::new(Tuning::default());
        scheduler.set_tenant(VM, Share::default(), 0);
        scheduler
    }

    fn seen(ready: u32, dispatched: u32, completed: u32) -> Seen {
        Seen { ready, dispatched, completed }
    }

    /// Returns a scheduler with a context that has completed one submission, for 3 ms, and has another in the driver.
    fn with_one_in_the_driver() -> Scheduler {
        let mut old = scheduler();
        old.begin(KEY, VM, 0);
        old.see(KEY, seen(1, 0, 0), &[], MS);
        assert_eq!(old.decide(MS), [Order::Grant { context: KEY, total: 1 }]);
        let span = Span { begin: MS, end: 4 * MS, busy: 3 * MS, count: 1, copy: false };
        old.see(KEY, seen(1, 1, 1), &[span], 4 * MS);
        assert_eq!(old.decide(4 * MS), [Order::Grant { context: KEY, total: 2 }]);
        old.see(KEY, seen(0, 2, 1), &[], 5 * MS);
        old
    }

    #[test]
    fn what_is_in_the_driver_completes_and_is_charged_with_the_next_scheduler() {
        let old = with_one_in_the_driver();
        let standing = old.standing(KEY).unwrap();
        assert_eq!((standing.granted, standing.completed, standing.used.gpu), (2, 1, 3 * MS));
        let mut new = scheduler();
        new.resume(KEY, VM, standing, 6 * MS);
        new.see(KEY, seen(1, 2, 1), &[], 6 * MS);
        let usage = new.usage(KEY).unwrap();
        assert_eq!((usage.in_driver, usage.running_since, usage.strays), (1, Some(6 * MS), 0));
        let span = Span { begin: 6 * MS, end: 8 * MS, busy: 2 * MS, count: 1, copy: false };
        new.see(KEY, seen(1, 2, 2), &[span], 8 * MS);
        assert_eq!(
            new.decide(8 * MS),
            [Order::Grant { context: KEY, total: 3 }],
            "the worker goes on counting"
        );
        let usage = new.usage(KEY).unwrap();
        assert_eq!((usage.gpu, usage.submissions, usage.strays), (5 * MS, 2, 0));
        assert_eq!(new.tenant_usage(VM).unwrap().gpu, 5 * MS);
    }

    #[test]
    fn a_worker_that_had_a_lease_is_believed_for_a_moment() {
        let standing = Standing { granted: 9, completed: 9, leased: true, used: Usage::default() };
        for (leased, strays) in [(true, 0), (false, 2)] {
            let mut new = scheduler();
            new.resume(KEY, VM, Standing { leased, ..standing }, MS);
            new.see(KEY, seen(0, 11, 9), &[], MS);
            assert_eq!(new.usage(KEY).unwrap().strays, strays);
        }
    }

    #[test]
    fn any_standing_can_be_taken_over() {
        for (granted, completed) in [(0, 1), (u32::MAX, 0), (5, u32::MAX), (u32::MAX / 2, u32::MAX)] {
            let used = Usage { gpu: Nanos::MAX, submissions: u64::MAX, in_driver: 7, ..Usage::default() };
            let mut new = scheduler();
            new.resume(KEY, VM, Standing { granted, completed, leased: false, used }, MS);
            new.resume_tenant(VM, used);
            for at in 1..20 {
                new.see(
                    KEY,
                    seen(at, completed.wrapping_add(at), completed.wrapping_add(at)),
                    &[],
                    Nanos::from(at) * MS,
                );
                new.decide(Nanos::from(at) * MS);
            }
            new.end(KEY, 30 * MS);
        }
    }
}
