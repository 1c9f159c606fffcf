//! The contents of the driver: the units that were granted, or dispatched under a lease, and have not completed. This file knows no tenants.

use super::{ContextKey, Nanos, Tuning};

/// Submissions of one context that were granted together, or all that it dispatched under a lease.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) context: ContextKey,
    /// Submissions of the unit that have not completed.
    pub(super) left: u32,
    /// The time that each submission is expected to take.
    pub(super) each: Nanos,
    pub(super) granted: Nanos,
    /// The earliest time at which the unit can have begun to run: when it was granted, or when the unit granted before it completed.
    pub(super) since: Nanos,
    /// The amount that its context was charged in advance beyond the estimate, because the unit is overdue.
    pub(super) surcharge: Nanos,
    pub(super) kind: Kind,
}

/// The reason for which a unit is in the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The unit took one of the places.
    Place,
    /// The unit is urgent, and takes no place.
    Lane,
    /// The unit was dispatched under a lease.
    Leased,
}

/// Units in the order in which they were granted.
#[derive(Debug, Default)]
pub(super) struct Units(pub(super) Vec<Unit>);

/// The places in the driver that are taken.
#[derive(Debug)]
pub(super) struct Places {
    /// The number of places that are taken, of [`PLACES`].
    pub(super) taken: usize,
    /// The context that has urgent submissions there, and their number.
    pub(super) lane: Option<(ContextKey, u32)>,
    /// The estimated time that is left for all units in the driver.
    pub(super) remainder: Nanos,
    /// The value of `remainder` when the first of them began.
    pub(super) estimate: Nanos,
    /// The time at which the next unit becomes overdue.
    pub(super) overdue: Option<Nanos>,
}

/// Units in the driver at once: one runs, one is staged.
pub(super) const PLACES: usize = 2;

impl Units {
    /// Returns whether this context's next completion is of a unit that was granted after a unit of another context which is still in the driver.
    pub(super) fn overtakes(&self, context: ContextKey) -> bool {
        self.0.first().is_some_and(|unit| unit.context != context) && self.of(context).next().is_some()
    }

    /// Completes `count` submissions. Returns when the first of them was granted or the one before it completed, and since when it ran if it ran
    /// alone.
    pub(super) fn complete(
        &mut self,
        context: ContextKey,
        mut count: u32,
        now: Nanos,
    ) -> Option<(Nanos, Nanos)> {
        let since = self.of(context).next().map(|unit| (unit.granted, unit.since));
        for index in 0..self.0.len() {
            let unit = &mut self.0[index];
            if unit.context != context || count == 0 {
                continue;
            }
            let done = unit.left.min(count);
            count -= done;
            unit.left -= done;
            let ran = now.saturating_sub(unit.since);
            (unit.granted, unit.since, unit.surcharge) = (now, now, 0);
            if unit.left == 0 {
                self.completed(index, ran, now);
            }
        }
        self.0.retain(|unit| unit.left > 0);
        since
    }

    /// Restarts the units behind this one, which begin now. The units before it were overtaken: the GPU ran them alternately with it, so they had
    /// half of the GPU.
    fn completed(&mut self, index: usize, ran: Nanos, now: Nanos) {
        let (before, behind) = self.0.split_at_mut(index);
        before.iter_mut().for_each(|unit| unit.since = unit.since.saturating_add(ran / 2).min(now));
        behind.iter_mut().for_each(|unit| unit.since = now);
    }

    /// Adds a granted unit; further urgent submissions join those already in the driver.
    pub(super) fn add(&mut self, context: ContextKey, count: u32, each: Nanos, kind: Kind, now: Nanos) {
        let lane = self.0.iter_mut().find(|unit| unit.context == context && unit.kind == Kind::Lane);
        match lane.filter(|_| kind == Kind::Lane) {
            Some(unit) => (unit.left, unit.each) = (unit.left.saturating_add(count), each),
            None => {
                self.0.push(Unit { context, left: count, each, granted: now, since: now, surcharge: 0, kind })
            }
        }
    }

    /// Adds submissions that were dispatched under a lease.
    pub(super) fn add_leased(&mut self, context: ContextKey, count: u32, each: Nanos, now: Nanos) {
        let kind = Kind::Leased;
        match self.0.iter_mut().find(|unit| unit.context == context && unit.kind == kind) {
            Some(unit) => (unit.left, unit.each) = (unit.left.saturating_add(count), each),
            None => {
                self.0.push(Unit {
                    context,
                    left: count,
                    each,
                    granted: now,
                    since: now,
                    surcharge: 0,
                    kind,
                });
            }
        }
    }

    pub(super) fn remove(&mut self, context: ContextKey) {
        self.0.retain(|unit| unit.context != context);
    }

    pub(super) fn of(&self, context: ContextKey) -> impl Iterator<Item = &Unit> {
        self.0.iter().filter(move |unit| unit.context == context)
    }

    pub(super) fn is_overdue(&self, context: ContextKey, tuning: &Tuning, now: Nanos) -> bool {
        self.of(context).next().is_some_and(|unit| unit.overdue_at(tuning) <= now)
    }

    /// Returns the places that are taken. Overdue units, and those behind them in the same context, hold no place, so that no context can keep others
    /// out with endless work. Such units are few, because a tenant has few contexts in the driver.
    pub(super) fn places(&self, tuning: &Tuning, now: Nanos) -> Places {
        let mut places = Places { taken: 0, lane: None, remainder: 0, estimate: 0, overdue: None };
        let mut first = None;
        for unit in &self.0 {
            if self.is_overdue(unit.context, tuning, now) {
                continue;
            }
            places.taken += usize::from(unit.kind != Kind::Lane);
            if unit.kind == Kind::Lane {
                places.lane = Some((unit.context, unit.left));
            }
            first.get_or_insert(unit.since);
            places.estimate = places.estimate.saturating_add(unit.estimate());
            let at = unit.overdue_at(tuning);
            places.overdue = Some(places.overdue.map_or(at, |earlier| earlier.min(at)));
        }
        let ran = first.map_or(0, |since| now.saturating_sub(since));
        places.remainder = places.estimate.saturating_sub(ran);
        places
    }
}

impl Unit {
    /// Returns the time that the rest of the unit is expected to take.
    pub(super) fn estimate(&self) -> Nanos {
        self.each.saturating_mul(u64::from(self.left))
    }

    fn overdue_at(&self, tuning: &Tuning) -> Nanos {
        let limit = self.estimate().saturating_mul(4).saturating_add(tuning.overdue);
        self.since.saturating_add(limit)
    }
}
