//! Tests of the harm that workers which were taken over can do to others.

use super::super::*;
use super::simulation::*;
use crate::Class;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};

/// Shares of two honest guests while a third does this, by GPU time.
fn beside(setting: Setting, adversary: &[Guest], time: Nanos) -> World {
    let honest = [Guest::new(0, 100, 2 * MILLISECOND), Guest::new(1, 100, 10 * MILLISECOND)];
    simulate(setting, honest.into_iter().chain(adversary.iter().cloned()).collect(), time)
}

fn assert_no_harm(world: &World, what: &str) {
    let parts = [0, 1].map(|index| world.part(index));
    // A third each, less what switches cost.
    assert!(parts.iter().all(|part| *part >= 1.0 / 3.0 - 0.02), "{what}: {parts:.4?}, {}", world.figures());
}

#[test]
fn a_flood_of_empty_submissions_is_paid_for() {
    for setting in SETTINGS {
        let flood = Guest { outstanding: 64, ..Guest::new(2, 100, MICROSECOND) };
        assert_no_harm(&beside(setting, &[flood], 2 * SECOND), "flood");
    }
}

#[test]
fn lies_about_completed_work_do_not_pay() {
    for setting in SETTINGS {
        for honesty in [Honesty::NoSpans, Honesty::FutureSpans, Honesty::Overclaims] {
            for length in [MILLISECOND, 5 * MILLISECOND, 25 * MILLISECOND] {
                let liar = Guest { honesty, ..Guest::new(2, 100, length) };
                assert_no_harm(&beside(setting, &[liar], 10 * SECOND), &format!("{honesty:?} {length}"));
            }
        }
    }
}

#[test]
fn lies_about_long_work_do_not_pay() {
    for setting in SETTINGS {
        for length in [2 * MILLISECOND, 25 * MILLISECOND] {
            let liar = Guest { honesty: Honesty::ShortSpans, ..Guest::new(2, 100, length) };
            assert_no_harm(&beside(setting, &[liar], 10 * SECOND), &format!("short spans {length}"));
        }
    }
}

#[test]
fn others_go_on_beside_submissions_that_never_end() {
    for endless in 1..4_u32 {
        let hogs: Vec<_> = (0..endless).map(|_| Guest::new(2, 100, 1_000_000 * SECOND)).collect();
        let world = beside(SLICED, &hogs, 10 * SECOND);
        let parts = [0, 1].map(|index| world.part(index));
        let (left, places) = (1.0 / f64::from(endless + 1), 0.45);
        assert!((parts[0] - parts[1]).abs() / 2.0 <= 0.02, "{parts:.4?}");
        assert!(parts[0] >= left * places, "{endless}: {parts:.4?}, {}", world.figures());
    }
}

/// A scheduler that is told anything, in any order.
struct Chaos {
    scheduler: Scheduler,
    random: u64,
    now: Nanos,
    epoch: Nanos,
}

impl Chaos {
    fn below(&mut self, limit: u64) -> u64 {
        xorshift(&mut self.random) % limit
    }

    /// A number that is small, or near the ends of its type.
    fn any(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(8),
            1 => u64::MAX - self.below(8),
            2 => self.now.wrapping_add(self.below(100 * MILLISECOND)).wrapping_sub(50 * MILLISECOND),
            _ => xorshift(&mut self.random),
        }
    }

    fn step(&mut self) {
        let key = ContextKey(self.below(12));
        let tenant = TenantId((key.0 / 3) as u32);
        self.now = self.now.saturating_add(self.below(2 * MILLISECOND));
        match self.below(40) {
            0 => self.scheduler.end(key, self.now),
            1 => _ = self.scheduler.remove_tenant(tenant),
            2 | 3 => {
                let class = [Class::Normal, Class::Latency, Class::Background][self.below(3) as usize];
                let ceiling =
                    [None, Some(0.3), Some(0.0), Some(f64::NAN), Some(-1.0)][self.below(5) as usize];
                let share = Share { weight: self.any() as u32, class, ceiling };
                self.scheduler.set_tenant(tenant, share, self.now);
            }
            4..10 => self.scheduler.begin(key, tenant, self.now),
            _ => self.see(key),
        }
    }

    fn see(&mut self, key: ContextKey) {
        let base = self
            .scheduler
            .contexts
            .get(&key)
            .map_or((0, 0, 0), |context| (context.granted, context.completed, context.skew));
        let (granted, completed, skew) = base;
        let honest = self.below(2) == 0;
        let mut total = |of: u32| {
            let near = of.wrapping_add(skew).wrapping_add(self.below(3) as u32);
            if honest { near } else { self.any() as u32 }
        };
        let (dispatched, completed) = (total(granted), total(completed));
        let ready = if honest { self.below(5) } else { self.any() } as u32;
        let spans: Vec<_> = (0..self.below(4))
            .map(|_| Span {
                begin: self.any(),
                end: self.any(),
                busy: self.any(),
                count: self.any() as u32,
                copy: self.below(3) == 0,
            })
            .collect();
        self.scheduler.see(key, Seen { ready, dispatched, completed }, &spans, self.now);
    }

    fn check(&mut self) {
        let placed = |chaos: &Self| {
            chaos.scheduler.units.0.iter().filter(|unit| unit.kind == crate::units::Kind::Place).count()
        };
        let before = placed(self);
        let orders = self.scheduler.decide(self.now);
        let places = self.scheduler.units.places(&self.scheduler.tuning, self.now);
        assert!(orders.len() <= 5, "{orders:?}");
        assert!(placed(self) == before || places.taken <= crate::units::PLACES, "{places:?}");
        assert!(self.scheduler.units.0.len() <= 4 * 12 + 3);
        if let Some(at) = self.scheduler.next_look() {
            assert!(at > self.now);
        }
        let waits = self.scheduler.contexts.values().any(|context| context.held_back() > 0);
        let stuck = waits && self.scheduler.next_look().is_none() && self.scheduler.units.0.is_empty();
        assert!(!stuck, "nobody would ever be served");
        for key in 0..12 {
            let usage = self.scheduler.usage(ContextKey(key));
            assert!(usage.is_none_or(|usage| usage.waiting <= self.now - self.epoch));
            let _ = self.scheduler.others_wait(ContextKey(key));
            let _ = self.scheduler.tenant_usage(TenantId(key as u32));
        }
    }
}

#[test]
fn whatever_workers_say_the_scheduler_goes_on() {
    for seed in 1..=40_u64 {
        let epoch = [0, SECOND, 1 << 60][seed as usize % 3];
        let scheduler = Scheduler::new(Tuning::default());
        let mut chaos = Chaos { scheduler, random: seed * 0x9e37_79b9, now: epoch, epoch };
        for _ in 0..1500 {
            chaos.step();
            chaos.check();
            // Looks come on time half of the time, and lead on.
            if chaos.below(2) == 0
                && let Some(at) = chaos.scheduler.next_look()
                && at < chaos.now + SECOND
            {
                chaos.now = at;
                chaos.check();
            }
        }
    }
}
