//! Leases: a context that was alone for a while dispatches without grants, until another has work.

use super::Scheduler;
use crate::tenant::{Context, virtual_time};
use crate::{Class, ContextKey, Nanos, Order, TenantId};

impl Scheduler {
    /// Gives a lease to the context that is alone, and takes it back when the context is not alone any more. If all contexts have leases for good
    /// ([`Tuning::leases_for_all`](crate::Tuning)), does nothing.
    pub(super) fn leases(&mut self, orders: &mut Vec<Order>) {
        if self.tuning.leases_for_all {
            return;
        }
        if let Some(key) = self.leased {
            if self.alone.key != Some(key) || !self.may_lease(key) {
                self.revoke(key);
                orders.push(Order::Revoke(key));
            }
            return;
        }
        let Some(key) = self.alone.key.filter(|key| self.may_lease(*key)) else { return };
        let at = self.alone.since.saturating_add(self.lease_after(key));
        if self.now < at {
            self.look_at(at);
            return;
        }
        if let Some(context) = self.contexts.get_mut(&key) {
            context.leased = true;
            self.leased = Some(key);
            orders.push(Order::Lease(key));
            self.refresh(key);
        }
    }

    fn revoke(&mut self, key: ContextKey) {
        self.leased = None;
        if let Some(context) = self.contexts.get_mut(&key) {
            if let Some(tenant) = self.tenants.get_mut(&context.tenant) {
                // The tenant was served, although no submission was granted.
                tenant.floor = tenant.floor.max(context.v - virtual_time(context.pending.amount, 1));
                self.v = self.v.max(tenant.v - virtual_time(tenant.advance, tenant.share.weight));
            }
            context.leased = false;
            context.trusted_until = self.now.saturating_add(self.tuning.revoke_grace);
        }
        self.refresh(key);
    }

    /// Returns whether a context may have a lease: it is active, or has a lease already, and its tenant may use the whole GPU.
    fn may_lease(&self, key: ContextKey) -> bool {
        let Some(context) = self.contexts.get(&key) else { return false };
        (context.active || context.leased) && self.is_unlimited(context)
    }

    /// Returns whether a context's tenant may use the whole GPU.
    fn is_unlimited(&self, context: &Context) -> bool {
        self.tenants.get(&context.tenant).is_some_and(|tenant| tenant.ceiling().is_none())
    }

    /// Returns the time for which a context has to be alone.
    fn lease_after(&self, key: ContextKey) -> Nanos {
        let own = self.contexts.get(&key).map(|context| context.tenant);
        if self.latency_is_about(own) { self.tuning.lease_after_latency } else { self.tuning.lease_after }
    }

    /// Returns whether a tenant of class [`Latency`](Class::Latency) has work, or had it lately ([`Tuning::latency_memory`](crate::Tuning)): the hardware
    /// should then turn to its contexts soon.
    #[must_use]
    pub fn is_in_a_hurry(&self) -> bool {
        self.shares_out() && self.latency_is_about(None)
    }

    /// Returns whether a latency tenant other than `except` had work lately.
    pub(super) fn latency_is_about(&self, except: Option<TenantId>) -> bool {
        self.tenants.iter().any(|(id, tenant)| {
            let lately = |at| self.now.saturating_sub(at) < self.tuning.latency_memory;
            Some(*id) != except && tenant.share.class == Class::Latency && tenant.worked.is_some_and(lately)
        })
    }
}
