//! This file bars programs of the guest whose contexts have to be killed again and again: they may start no contexts for a while.
//!
//! A program is known by the name of its contexts, which it chooses itself. A program could change its name to escape. So the strikes of all
//! programs also count together, each program's as far as they do not bar itself: four times as many bar the VM. One program, however often it is
//! struck, bars no other.
//!
//! This file knows no clock: time is passed in. Strikes survive the VM's reset, or a guest would get rid of them by restarting.

use config::HangLimits;
use outside::Span;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

/// Programs that are remembered, at most. Beyond that, the program that was struck longest ago is forgotten; its strikes still count for the VM.
const PROGRAMS_MAX: usize = 64;
/// The VM is barred by this many times the strikes that bar a program.
const VM_FACTOR: u32 = 4;

/// The strikes of one VM.
#[derive(Debug)]
pub(in crate::serve) struct Strikes {
    limits: HangLimits,
    programs: HashMap<Box<str>, Record>,
    together: Record,
}

/// The programs that may not start contexts, and for how much longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Barred {
    /// One program, by its name.
    Program(Duration),
    /// All programs.
    Vm(Duration),
}

/// The strikes of one program, or of all programs.
#[derive(Debug, Default)]
struct Record {
    count: u32,
    /// The time at which the last strike was counted.
    changed: Option<Instant>,
    held_until: Option<Instant>,
}

/// The strikes of a VM, written down for another process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::serve) struct PassedStrikes {
    programs: BTreeMap<String, PassedRecord>,
    together: PassedRecord,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct PassedRecord {
    count: u32,
    /// The time since the last strike was counted, and the time until the program is not barred any more.
    since: Option<Duration>,
    left: Option<Duration>,
}

impl fmt::Display for Barred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(left) => write!(f, "programs of its name may start no context for {}", Span(*left)),
            Self::Vm(left) => write!(f, "no program of the VM may start a context for {}", Span(*left)),
        }
    }
}

impl Strikes {
    /// Makes the record of a VM that has no strikes yet.
    pub(in crate::serve) fn new(limits: HangLimits) -> Self {
        Self { limits, programs: HashMap::new(), together: Record::default() }
    }

    /// Notes that a context of a program was killed. Returns which of the program and the VM is barred now, if one is.
    pub(in crate::serve) fn strike(&mut self, program: &str, now: Instant) -> Option<Barred> {
        let free = self.limits.strikes?;
        let mut record = self.program(program);
        let (count, held) = record.strike(free, &self.limits, now);
        self.programs.insert(program.into(), record);
        let vm = if count <= free {
            self.together.strike(free.saturating_mul(VM_FACTOR), &self.limits, now).1
        } else {
            None
        };
        vm.map(Barred::Vm).or(held.map(Barred::Program))
    }

    /// Returns whether a program may start no contexts, and for how much longer.
    pub(in crate::serve) fn held(&self, program: &str, now: Instant) -> Option<Barred> {
        let own = || self.programs.get(program)?.held(now).map(Barred::Program);
        self.together.held(now).map(Barred::Vm).or_else(own)
    }

    /// Returns the strikes in the form in which another process gets them.
    pub(in crate::serve) fn pass_on(&self, now: Instant) -> PassedStrikes {
        let programs = self.programs.iter().map(|(name, record)| (name.to_string(), record.pass_on(now)));
        PassedStrikes { programs: programs.collect(), together: self.together.pass_on(now) }
    }

    /// Goes on with the strikes of another process, even if that process had other limits.
    pub(in crate::serve) fn resume(&mut self, passed: PassedStrikes, now: Instant) {
        let programs = passed.programs.into_iter().take(PROGRAMS_MAX);
        self.programs = programs.map(|(name, record)| (name.into(), self.resumed(record, now))).collect();
        self.together = self.resumed(passed.together, now);
    }

    fn resumed(&self, PassedRecord { count, since, left }: PassedRecord, now: Instant) -> Record {
        let held_until = left.map(|left| now + left.min(self.limits.strike_hold_max));
        Record { count, changed: since.map(|since| now.checked_sub(since).unwrap_or(now)), held_until }
    }

    /// Returns the number of strikes that bar a program.
    pub(in crate::serve) fn free(&self) -> Option<u32> {
        self.limits.strikes
    }

    /// Takes out the record of a program, and makes room to put it back.
    fn program(&mut self, name: &str) -> Record {
        if let Some(record) = self.programs.remove(name) {
            return record;
        }
        if self.programs.len() >= PROGRAMS_MAX {
            let oldest =
                self.programs.iter().min_by_key(|(_, record)| record.changed).map(|(name, _)| name.clone());
            oldest.and_then(|oldest| self.programs.remove(&oldest));
        }
        Record::default()
    }
}

impl Record {
    /// Counts a strike. Returns the number of strikes now, and for how long they bar the program, if they do.
    fn strike(&mut self, free: u32, limits: &HangLimits, now: Instant) -> (u32, Option<Duration>) {
        self.forgive(limits.strike_forgiven, now);
        self.count = self.count.saturating_add(1);
        self.changed = Some(now);
        let hold = self.count.checked_sub(free).map(|beyond| {
            let factor = 1u32.checked_shl(beyond).unwrap_or(u32::MAX);
            limits.strike_hold.saturating_mul(factor).min(limits.strike_hold_max)
        });
        self.held_until = hold.map(|hold| now + hold).or(self.held_until);
        (self.count, hold)
    }

    fn pass_on(&self, now: Instant) -> PassedRecord {
        let since = self.changed.map(|changed| now.saturating_duration_since(changed));
        PassedRecord { count: self.count, since, left: self.held(now) }
    }

    fn held(&self, now: Instant) -> Option<Duration> {
        let left = self.held_until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    fn forgive(&mut self, after: Duration, now: Instant) {
        let Some(changed) = self.changed else { return };
        let since = now.saturating_duration_since(changed).as_secs_f64();
        let forgiven = (since / after.as_secs_f64()) as u32;
        self.count = self.count.saturating_sub(forgiven);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn another_process_goes_on_with_the_strikes_of_the_one_before() {
        let (mut old, now) = (Strikes::new(limits()), Instant::now());
        (0..4).for_each(|_| _ = old.strike("a", now));
        old.strike("b", now);
        let mut new = Strikes::new(limits());
        new.resume(old.pass_on(now + SECOND), now + SECOND);
        assert_eq!(new.pass_on(now + 2 * SECOND), old.pass_on(now + 2 * SECOND));
        assert!(new.held("a", now + SECOND).is_some() && new.held("b", now + SECOND).is_none());
    }

    fn limits() -> HangLimits {
        HangLimits {
            strikes: Some(3),
            strike_hold: 10 * SECOND,
            strike_hold_max: 60 * SECOND,
            strike_forgiven: 300 * SECOND,
            ..HangLimits::default()
        }
    }

    fn seconds(barred: Option<Barred>) -> Option<u64> {
        barred.map(|barred| match barred {
            Barred::Program(left) | Barred::Vm(left) => left.as_secs(),
        })
    }

    #[test]
    fn some_are_free_then_each_costs_twice_as_much_up_to_a_limit() {
        let (mut strikes, now) = (Strikes::new(limits()), Instant::now());
        let holds: Vec<_> = (0..7).map(|_| seconds(strikes.strike("a", now))).collect();
        assert_eq!(holds, [None, None, Some(10), Some(20), Some(40), Some(60), Some(60)]);
        assert_eq!(strikes.held("a", now + 59 * SECOND), Some(Barred::Program(SECOND)));
        assert_eq!(strikes.held("a", now + 60 * SECOND), None);
    }

    #[test]
    fn one_program_bars_no_other_however_often_it_is_struck() {
        let (mut strikes, now) = (Strikes::new(limits()), Instant::now());
        for _ in 0..1000 {
            assert!(!matches!(strikes.strike("bad", now), Some(Barred::Vm(_))));
        }
        assert!(strikes.held("bad", now).is_some());
        assert_eq!(strikes.held("good", now), None);
    }

    #[test]
    fn a_program_that_changes_its_name_does_not_get_away_with_it() {
        for strikes_each in [1, 2, 3] {
            let (mut strikes, now) = (Strikes::new(limits()), Instant::now());
            let names = (0..).flat_map(|number| vec![format!("name {number}"); strikes_each]);
            let barred: Vec<_> = names.take(14).map(|name| strikes.strike(&name, now)).collect();
            assert!(!barred[..11].iter().any(|barred| matches!(barred, Some(Barred::Vm(_)))));
            assert_eq!(barred[11..], [10, 20, 40].map(|hold| Some(Barred::Vm(hold * SECOND))));
            assert_eq!(strikes.held("another name", now + 39 * SECOND), Some(Barred::Vm(SECOND)));
        }
    }

    #[test]
    fn names_are_forgotten_only_if_there_are_too_many_and_the_oldest_first() {
        let (mut strikes, mut now) = (Strikes::new(limits()), Instant::now());
        for number in 0..10 * PROGRAMS_MAX {
            let _ = strikes.strike(&format!("name {number}"), now);
            now += SECOND / 1000;
        }
        assert_eq!(strikes.programs.len(), PROGRAMS_MAX);
        assert!(strikes.programs.contains_key("name 639") && !strikes.programs.contains_key("name 575"));
    }

    #[test]
    fn strikes_are_forgiven_one_by_one() {
        let (mut strikes, mut now) = (Strikes::new(limits()), Instant::now());
        let mut strike = |wait: u32| {
            now += wait * SECOND;
            seconds(strikes.strike("a", now))
        };
        assert!((0..100).all(|_| strike(300).is_none()));
        assert_eq!([strike(3300), strike(0), strike(0)], [None, None, Some(10)]);
        assert_eq!([strike(600), strike(0)], [None, Some(10)]);
    }

    #[test]
    fn thousands_of_strikes_overflow_nothing() {
        let (mut strikes, now) = (Strikes::new(limits()), Instant::now());
        let last = (0..5000).map(|_| strikes.strike("a", now)).last();
        assert_eq!(last, Some(Some(Barred::Program(60 * SECOND))));
    }

    #[test]
    fn without_a_limit_none_is_barred() {
        let now = Instant::now();
        let mut strikes = Strikes::new(HangLimits::software());
        assert!((0..1000).all(|_| strikes.strike("a", now).is_none()));
        assert_eq!(strikes.held("a", now), None);
    }
}
