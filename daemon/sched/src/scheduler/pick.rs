//! The choice of the context that comes next: the tenant that is furthest behind, and the context that is furthest behind among the tenant's.

use super::Scheduler;
use crate::tenant::{Context, Tenant, Virtual, virtual_time};
use crate::time::{MILLISECOND, scaled};
use crate::units::{Kind, PLACES, Places};
use crate::{Class, ContextKey, Nanos, Order, TenantId, Tuning};
use rustc_hash::FxHashMap;

/// The context that comes next if its tenant does.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) tenant: TenantId,
    pub(super) key: ContextKey,
    pub(super) v: Virtual,
    pub(super) context_v: Virtual,
    pub(super) weight: u32,
    class: Class,
    last_completion: Option<Nanos>,
    /// The time that one of its submissions is expected to take.
    pub(super) estimate: Nanos,
    /// True for a latency tenant that has used less than its share lately.
    urgent: bool,
}

/// The context that is granted submissions, and the reason.
#[derive(Debug)]
pub(super) struct Pick {
    key: ContextKey,
    kind: Kind,
    /// The most submissions that are granted.
    count: u32,
}

impl Candidate {
    fn new(id: TenantId, tenant: &Tenant, key: ContextKey, context: &Context, tuning: &Tuning) -> Self {
        Self {
            tenant: id,
            key,
            v: tenant.v,
            context_v: context.v,
            weight: tenant.share.weight,
            class: tenant.share.class,
            last_completion: context.last_completion,
            estimate: context.estimate(tuning),
            urgent: false,
        }
    }

    /// Returns the order of candidates: by their virtual time, then by the time that they wait.
    fn order(&self) -> (Virtual, Option<Nanos>, ContextKey) {
        (self.v, self.last_completion, self.key)
    }
}

impl Scheduler {
    /// Chooses the context that is granted submissions now.
    pub(super) fn pick(&mut self) -> Option<Pick> {
        let latency = self.latency_is_about(None);
        let places = self.units.places(&self.tuning, self.now);
        let full = places.taken >= PLACES;
        if full {
            self.look_at(places.overdue.unwrap_or(Nanos::MAX));
        }
        if full && !latency {
            return None;
        }
        let candidates = self.candidates();
        let best = candidates.iter().min_by_key(|candidate| candidate.order())?.clone();
        let urgent = candidates.iter().filter(|candidate| candidate.urgent);
        if let Some(urgent) = urgent.min_by_key(|candidate| candidate.order())
            && let Some(count) = self.room_in_lane(&places, urgent)
        {
            return Some(Pick { key: urgent.key, kind: Kind::Lane, count });
        }
        if full || !self.is_time_to_stage(&places, &best, latency) {
            return None;
        }
        let chosen = self.stay(&candidates, best);
        if self.waits_before(&chosen) {
            return None;
        }
        let count = if latency { 1 } else { self.bundle(&chosen) };
        Some(Pick { key: chosen.key, kind: Kind::Place, count })
    }

    /// Returns how many more urgent submissions the driver takes: it takes those of one context at a time.
    fn room_in_lane(&self, places: &Places, urgent: &Candidate) -> Option<u32> {
        let most = u32::try_from(self.tuning.lane / urgent.estimate).unwrap_or(LANE_MAX).clamp(1, LANE_MAX);
        match places.lane {
            None => Some(most),
            Some((context, there)) if context == urgent.key && there < most => Some(most - there),
            Some(_) => None,
        }
    }

    /// Returns how many submissions make a unit: several if they are short.
    fn bundle(&self, chosen: &Candidate) -> u32 {
        if chosen.estimate >= self.tuning.bundle_below {
            return 1;
        }
        // The other half stays to be staged, so that the context does not count as idle.
        let half = self.contexts.get(&chosen.key).map_or(1, |context| context.held_back().div_ceil(2));
        u32::try_from(self.tuning.bundle / chosen.estimate).unwrap_or(1).min(half)
    }

    /// Grants the submissions that were picked.
    pub(super) fn grant(&mut self, pick: Pick) -> Option<Order> {
        let Pick { key, kind, count } = pick;
        let now = self.now;
        let context = self.contexts.get_mut(&key)?;
        let each = context.estimate(&self.tuning);
        let time = context.expected(&self.tuning);
        let count = count.min(context.held_back()).max(1);
        context.granted = context.granted.wrapping_add(count);
        if let Some(tenant) = self.tenants.get_mut(&context.tenant) {
            tenant.floor = tenant.floor.max(context.v);
        }
        let competing = self.tenants.values().filter(|tenant| tenant.competes);
        self.v = self.v.max(competing.map(|tenant| tenant.v).min().unwrap_or(self.v));
        let total = context.granted.wrapping_add(context.skew);
        self.advance(key, count, each, now);
        self.units.add(key, count, time, kind, now);
        self.last = Some(key);
        self.settle_wait(None);
        self.refresh(key);
        Some(Order::Grant { context: key, total })
    }

    /// Returns one candidate of each tenant that may get a grant. Also raises the virtual times of tenants that compete again.
    fn candidates(&mut self) -> Vec<Candidate> {
        let foreground = |tenant: &Tenant| tenant.active > 0 && tenant.share.class != Class::Background;
        let foreground = self.tenants.values().any(foreground);
        let crowds = self.crowds();
        let (mut found, mut weights, mut look) = (Vec::new(), 0, Nanos::MAX);
        for (id, tenant) in &mut self.tenants {
            let competed = std::mem::replace(&mut tenant.competes, false);
            if tenant.active == 0 || (foreground && tenant.share.class == Class::Background) {
                continue;
            }
            if !competed {
                tenant.v = tenant.v.max(self.v - tenant.credit(&self.tuning));
            }
            let timely = |key: ContextKey| !self.units.is_overdue(key, &self.tuning, self.now);
            let mut ready = first_ready(tenant, &self.contexts, timely);
            if let Some(crowd) = crowds.get(id) {
                let is_kept_back = ready.take_if(|(key, _)| !crowd.admits(*key)).is_some();
                look = look.min(crowd.until.filter(|_| is_kept_back).unwrap_or(Nanos::MAX));
                if crowd.is_overdue && ready.is_none() {
                    // Grants to others meanwhile do not count against this tenant.
                    continue;
                }
            }
            if let Some((key, context)) = ready {
                let candidate = Candidate::new(*id, tenant, key, context, &self.tuning);
                let at = tenant.allowed_at(candidate.estimate, &self.tuning, self.now);
                if at.is_none_or(|at| at > self.now) {
                    look = look.min(at.unwrap_or(Nanos::MAX));
                    continue;
                }
                found.push(candidate);
            }
            tenant.competes = true;
            weights += u64::from(tenant.share.weight);
        }
        if look < Nanos::MAX {
            self.look_at(look);
        }
        self.find_urgent(&mut found, weights);
        found
    }

    /// Marks the candidates of latency tenants that used less of the window than their part of the weights of all competing tenants.
    fn find_urgent(&mut self, candidates: &mut [Candidate], weights: u64) {
        for candidate in candidates.iter_mut().filter(|candidate| candidate.class == Class::Latency) {
            let Some(tenant) = self.tenants.get_mut(&candidate.tenant) else { continue };
            let used = tenant.window.used(self.now).saturating_add(tenant.advance);
            let share = u128::from(self.tuning.window) * u128::from(candidate.weight);
            candidate.urgent = u128::from(used) * u128::from(weights) < share;
        }
    }

    /// Returns whether to stage a unit now: the work in the driver ends soon, or its end does not matter.
    fn is_time_to_stage(&mut self, places: &Places, best: &Candidate, latency: bool) -> bool {
        let part = scaled(places.estimate, self.tuning.stage_part);
        let (least, sliced) = (self.tuning.stage_within, self.timeline.is_sliced());
        let within = if sliced { least / 2 } else { least.max(if latency { 0 } else { part }) };
        if !latency
            && sliced
            && best.estimate < places.remainder
            && self.is_single(best.key)
            && !self.has_turns(best.key)
        {
            // The submission runs beside the longer one. Otherwise its context would be idle until that one ends.
            return true;
        }
        // On a GPU that time-slices, a context with long submissions has only its part.
        let ran = places.estimate - places.remainder;
        let is_long = sliced && ran >= self.tuning.overdue;
        if places.remainder <= within
            || is_long
            || (best.class != Class::Background && self.only_background_runs())
        {
            return true;
        }
        let until_long = if sliced { self.tuning.overdue - ran } else { Nanos::MAX };
        self.look_at(self.now.saturating_add((places.remainder - within).min(until_long)));
        false
    }

    /// Returns whether a context submits one at a time: it has one submission, and had no work before that.
    fn is_single(&self, key: ContextKey) -> bool {
        let single = |context: &Context| context.is_fresh && context.held_back() == 1 && !context.in_driver();
        self.contexts.get(&key).is_some_and(single)
    }

    fn only_background_runs(&self) -> bool {
        self.units.0.iter().all(|unit| {
            let tenant =
                self.contexts.get(&unit.context).and_then(|context| self.tenants.get(&context.tenant));
            tenant.is_some_and(|tenant| tenant.share.class == Class::Background)
        })
    }

    /// Returns `best`, or the context that was granted last if it is not far beyond its turn.
    fn stay(&self, candidates: &[Candidate], best: Candidate) -> Candidate {
        let last = self.last.and_then(|key| Some((key, self.contexts.get(&key)?)));
        let Some((key, context)) = last.filter(|(_, context)| context.held_back() > 0) else { return best };
        let same = candidates.iter().find(|candidate| candidate.tenant == context.tenant);
        // A context that submits one at a time alternates with the last context, which runs while the first prepares its next submission.
        let alternates = self.is_single(best.key);
        let Some(same) = same.filter(|_| best.class != Class::Latency && !alternates) else { return best };
        // The more tenants there are, the smaller is the part of each, and the more a difference matters.
        let tenants = u64::try_from(candidates.len()).unwrap_or(1).max(1);
        let affinity = (AFFINITY_OF_ALL / tenants).max(MILLISECOND).min(self.tuning.affinity);
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

/// Returns the context of a tenant that comes next, among those that have submissions to grant and are `timely`.
fn first_ready<'a>(
    tenant: &Tenant,
    contexts: &'a FxHashMap<ContextKey, Context>,
    timely: impl Fn(ContextKey) -> bool,
) -> Option<(ContextKey, &'a Context)> {
    let own = tenant.contexts.iter().filter_map(|key| Some((*key, contexts.get(key)?)));
    let ready = own.filter(|(key, context)| context.held_back() > 0 && timely(*key));
    ready.min_by_key(|(key, context)| (context.v, context.last_completion, *key))
}

/// The most time by which all tenants together are ahead of their turn, in nanoseconds.
const AFFINITY_OF_ALL: Nanos = 32 * MILLISECOND;
/// Urgent submissions in the driver at once.
const LANE_MAX: u32 = 16;
