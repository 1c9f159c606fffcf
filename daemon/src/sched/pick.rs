//! Who comes next: the tenant that is furthest behind, and of its contexts the one that is.

use super::tenant::{Virtual, scaled, virtual_time};
use super::units::{Kind, PLACES, Places, Unit};
use super::{Class, ContextKey, Nanos, Order, Scheduler, TenantId};

/// The context of a tenant that comes next, if the tenant does.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) tenant: TenantId,
    pub(super) key: ContextKey,
    pub(super) v: Virtual,
    pub(super) context_v: Virtual,
    pub(super) weight: u32,
    class: Class,
    /// What one of its submissions is thought to take.
    pub(super) estimate: Nanos,
    /// Of a latency tenant that has used less than its share lately.
    urgent: bool,
}

/// What is granted, and why.
#[derive(Debug)]
pub(super) struct Pick {
    key: ContextKey,
    kind: Kind,
    /// Whether short submissions are granted together.
    bundle: bool,
}

impl Scheduler {
    /// Who is to be granted something now.
    pub(super) fn pick(&mut self) -> Option<Pick> {
        let candidates = self.candidates();
        let best = candidates.iter().min_by_key(|candidate| self.order(candidate))?.clone();
        let latency = self.latency_is_about(None);
        let places = self.units.places(&self.tuning, self.now);
        let urgent = candidates.iter().filter(|candidate| candidate.urgent);
        if let Some(urgent) = urgent.min_by_key(|candidate| self.order(candidate))
            && !places.lane
        {
            return Some(Pick { key: urgent.key, kind: Kind::Lane, bundle: false });
        }
        if places.taken >= PLACES {
            self.look_at(places.overdue.unwrap_or(Nanos::MAX));
            return None;
        }
        if !self.is_time_to_stage(&places, &best, latency) {
            return None;
        }
        let chosen = self.stay(&candidates, best);
        if self.waits_before(&chosen) {
            return None;
        }
        Some(Pick { key: chosen.key, kind: Kind::Place, bundle: !latency })
    }

    /// Grants it.
    pub(super) fn grant(&mut self, pick: Pick) -> Option<Order> {
        let Pick { key, kind, bundle } = pick;
        let now = self.now;
        let context = self.contexts.get_mut(&key)?;
        let each = context.estimate(&self.tuning);
        let together = if bundle && each < self.tuning.bundle_below { self.tuning.bundle / each } else { 1 };
        let count = u32::try_from(together).unwrap_or(1).clamp(1, context.held_back().max(1));
        context.granted = context.granted.wrapping_add(count);
        context.granted_at = Some(now);
        let total = context.granted.wrapping_add(context.skew);
        self.advance(key, count, each, now);
        self.units.0.push(Unit { context: key, left: count, each, since: now, surcharge: 0, kind });
        self.last = Some(key);
        self.patience.granted(now);
        self.refresh(key);
        Some(Order::Grant { context: key, total })
    }

    /// One candidate of each tenant that may have something granted. Also brings the virtual times of those up that compete again.
    fn candidates(&mut self) -> Vec<Candidate> {
        let foreground =
            self.tenants.values().any(|tenant| tenant.active > 0 && tenant.share.class != Class::Background);
        let mut found = Vec::new();
        let mut look = None::<Nanos>;
        let mut joining = Vec::new();
        let mut least = None::<Virtual>;
        let mut weights = 0;
        for (id, tenant) in &mut self.tenants {
            let competed = std::mem::replace(&mut tenant.competes, false);
            if tenant.active == 0 || (foreground && tenant.share.class == Class::Background) {
                continue;
            }
            let ready = tenant.contexts.iter().filter_map(|key| Some((*key, self.contexts.get(key)?)));
            let ready = ready.filter(|(key, context)| {
                context.held_back() > 0 && !self.units.is_overdue(*key, &self.tuning, self.now)
            });
            let first = ready.min_by_key(|(key, context)| (context.v, context.last_completion, *key));
            if let Some((key, context)) = first {
                let estimate = context.estimate(&self.tuning);
                let (v, class, weight) = (tenant.v, tenant.share.class, tenant.share.weight);
                let context_v = context.v;
                match tenant.allowed_at(estimate, &self.tuning, self.now) {
                    Some(at) if at <= self.now => {}
                    Some(at) => {
                        look = Some(look.map_or(at, |earlier| earlier.min(at)));
                        continue;
                    }
                    None => continue,
                }
                found.push(Candidate {
                    tenant: *id,
                    key,
                    v,
                    context_v,
                    weight,
                    class,
                    estimate,
                    urgent: false,
                });
            }
            tenant.competes = true;
            weights += u64::from(tenant.share.weight);
            if competed {
                least = Some(least.map_or(tenant.v, |least| least.min(tenant.v)));
            } else {
                joining.push(*id);
            }
        }
        if let Some(look) = look {
            self.look_at(look);
        }
        self.v = self.v.max(least.unwrap_or(self.v));
        for id in joining {
            if let Some(tenant) = self.tenants.get_mut(&id) {
                tenant.v = tenant.v.max(self.v - tenant.credit(&self.tuning));
            }
        }
        for candidate in &mut found {
            if let Some(tenant) = self.tenants.get_mut(&candidate.tenant) {
                candidate.v = tenant.v;
                let share =
                    u128::from(self.tuning.window) * u128::from(candidate.weight) / u128::from(weights);
                let used = tenant.window.used(self.now).saturating_add(tenant.advance);
                candidate.urgent = candidate.class == Class::Latency && u128::from(used) < share;
            }
        }
        found
    }

    /// Candidates come by their virtual time, then who waits longer.
    fn order(&self, candidate: &Candidate) -> (Virtual, Option<Nanos>, ContextKey) {
        let since = self.contexts.get(&candidate.key).and_then(|context| context.last_completion);
        (candidate.v, since, candidate.key)
    }

    /// Whether what is in the driver ends soon, or is of no importance.
    fn is_time_to_stage(&mut self, places: &Places, best: &Candidate, latency: bool) -> bool {
        let part = scaled(places.estimate, self.tuning.stage_part);
        let within = if latency { 0 } else { part }.max(self.tuning.stage_within);
        if places.remainder <= within || (best.class != Class::Background && self.only_background_runs()) {
            return true;
        }
        self.look_at(self.now.saturating_add(places.remainder - within));
        false
    }

    fn only_background_runs(&self) -> bool {
        self.units.0.iter().all(|unit| {
            let tenant =
                self.contexts.get(&unit.context).and_then(|context| self.tenants.get(&context.tenant));
            tenant.is_some_and(|tenant| tenant.share.class == Class::Background)
        })
    }

    /// `best`, or the context that was granted last if it is not far beyond its turn.
    fn stay(&self, candidates: &[Candidate], best: Candidate) -> Candidate {
        let last = self.last.and_then(|key| Some((key, self.contexts.get(&key)?)));
        let Some((key, context)) = last.filter(|(_, context)| context.held_back() > 0) else { return best };
        let same = candidates.iter().find(|candidate| candidate.tenant == context.tenant);
        let Some(same) = same.filter(|_| best.class != Class::Latency) else { return best };
        let affinity = self.tuning.affinity;
        let near = if same.tenant == best.tenant {
            context.v - best.context_v < virtual_time(affinity, 1)
        } else {
            same.v - best.v < virtual_time(affinity, same.weight)
        };
        if !near || self.units.is_overdue(key, &self.tuning, self.now) {
            return best;
        }
        Candidate { key, context_v: context.v, estimate: context.estimate(&self.tuning), ..same.clone() }
    }
}
