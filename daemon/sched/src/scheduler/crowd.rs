//! The contexts of a tenant that are in the driver at once: few, however many the tenant has. Work that the driver has got runs, even if another
//! tenant is behind. A GPU that time-slices contexts gives each context the same time, so a tenant with more contexts there gets more. A GPU that
//! does not time-slice runs all of them before the work that comes next.

use super::Scheduler;
use crate::tenant::Tenant;
use crate::time::SECOND;
use crate::{Class, ContextKey, Nanos, TenantId};
use rustc_hash::FxHashMap;

/// The contexts of one tenant that are in the driver.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    contexts: Vec<ContextKey>,
    /// One of these contexts is overdue.
    pub(super) is_overdue: bool,
    /// The number of contexts that the tenant may have there.
    most: usize,
    /// The time from which there may be more, if other tenants have no work until then.
    pub(super) until: Option<Nanos>,
}

impl Crowd {
    /// Returns whether a context of the tenant may be granted submissions.
    pub(super) fn admits(&self, key: ContextKey) -> bool {
        self.contexts.contains(&key) || self.contexts.len() < self.most
    }
}

impl Scheduler {
    /// Returns the crowds of all tenants that have submissions in the driver; none if all contexts have leases for good.
    pub(super) fn crowds(&self) -> FxHashMap<TenantId, Crowd> {
        let mut crowds = FxHashMap::<TenantId, Crowd>::default();
        if self.tuning.leases_for_all {
            return crowds;
        }
        for unit in &self.units.0 {
            let Some(context) = self.contexts.get(&unit.context) else { continue };
            let crowd = crowds.entry(context.tenant).or_default();
            if !crowd.contexts.contains(&unit.context) {
                crowd.contexts.push(unit.context);
            }
            crowd.is_overdue |= self.units.is_overdue(unit.context, &self.tuning, self.now);
        }
        for (id, crowd) in &mut crowds {
            let surprised = self.tenants.get(id).map_or(0, |tenant| tenant.surprised_until);
            let until = self.others_are_quiet_at(*id).map_or(surprised, |at| at.min(surprised));
            let is_held_back = until > self.now;
            crowd.most = if is_held_back { SURPRISED } else { MOST };
            crowd.until = Some(until).filter(|_| is_held_back);
        }
        crowds
    }

    /// Notes the tenants whose submissions take far longer than expected.
    pub(super) fn note_surprises(&mut self) {
        if self.tuning.leases_for_all {
            return;
        }
        for unit in &self.units.0 {
            if self.units.is_overdue(unit.context, &self.tuning, self.now)
                && let Some(context) = self.contexts.get(&unit.context)
                && let Some(tenant) = self.tenants.get_mut(&context.tenant)
            {
                tenant.surprised_until = self.now.saturating_add(LATELY);
            }
        }
    }

    /// Returns the time from which no other tenant counts as active; none while another tenant has work.
    fn others_are_quiet_at(&self, id: TenantId) -> Option<Nanos> {
        let is_background = |tenant: &Tenant| tenant.share.class == Class::Background;
        let matters =
            |tenant: &Tenant| !is_background(tenant) || self.tenants.get(&id).is_some_and(is_background);
        let mut others = self.tenants.iter().filter(|(other, tenant)| **other != id && matters(tenant));
        others.try_fold(0, |latest, (_, tenant)| {
            let quiet = tenant.worked.map_or(0, |at| at.saturating_add(LATELY));
            (tenant.active == 0).then_some(latest.max(quiet))
        })
    }
}

/// Contexts of a tenant that are in the driver: one runs, one is staged.
const MOST: usize = 2;
/// The number of a tenant's contexts that are in the driver while one of its submissions is overdue, or was lately, and another tenant has work, or
/// had it lately.
const SURPRISED: usize = 1;
/// The length of "lately", in nanoseconds.
const LATELY: Nanos = SECOND;
