//! Finds the contexts that keep others from the GPU, as far as this can be known while submissions do not end. A device process asks about the
//! contexts of its VM, and the broker about those of all VMs.
//!
//! A driver does not say whose work a GPU is busy with. A device process and the broker see how long earlier submissions of a context took, when its
//! last one ended, and for how long the present one has run. A context blocks another that is late if the first was late before the other began, or
//! if the submissions of the first take far longer. It does not block the other if a submission of the other has ended meanwhile, because that
//! submission got the GPU. Contexts that these times do not distinguish are equal: neither has to make room for the other. This file knows no clock,
//! no limits and no names: a context has the number that the asking process gives it.

use std::cmp::Reverse;
use std::time::Duration;

/// A submission that takes this much longer than usual is late. The order in which two contexts began is known no more exactly than this.
const LATE: Duration = Duration::from_millis(250);
/// The submissions of a context have to take this many times longer than another's, before the context counts as holding the other up.
const FAR_LONGER: u32 = 4;

/// A context with a submission that could run: it runs, or others keep it from running.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running<Id> {
    /// The context.
    pub id: Id,
    /// The time for which the submission could run so far.
    pub ran: Duration,
    /// The part of that time in which the submission had the GPU, if all running submissions shared the GPU evenly.
    pub charged: Duration,
    /// The usual time of the context's submissions so far; none if none has ended.
    pub usual: Option<Duration>,
    /// The time since a submission of the context last ended, if one has ended.
    pub served: Option<Duration>,
}

impl<Id: Copy + Ord> Running<Id> {
    /// Returns whether this context blocks another one: the other is late, and this one is the likely cause.
    pub(crate) fn holds_up(&self, other: &Self) -> bool {
        let may = other.is_late() && !other.was_late_before(self) && !other.was_served_beside(self);
        may && (self.was_late_before(other) || self.takes_far_longer_than(other))
    }

    /// Returns whether neither context was late before the other began, so that both reach a limit at about the same time.
    pub(crate) fn is_abreast_of(&self, other: &Self) -> bool {
        !self.was_late_before(other) && !other.was_late_before(self)
    }

    /// Returns whether no difference shows that this context should make room for the other, though this one runs longer.
    pub(crate) fn is_equal_to(&self, other: &Self) -> bool {
        self.is_abreast_of(other) && !self.takes_far_longer_than(other)
    }

    /// Returns whether the context cannot have had its part of the GPU, one of `parts`: with its part, its submission would have ended.
    pub(crate) fn is_starved(&self, parts: u32) -> bool {
        self.usual.is_some_and(|usual| self.ran > usual.saturating_mul(2 * parts).saturating_add(LATE))
    }

    /// Returns the time after which the context's submission is late.
    pub(crate) fn late(&self) -> Duration {
        self.usual.unwrap_or_default().saturating_add(LATE)
    }

    fn is_late(&self) -> bool {
        self.ran >= self.late()
    }

    fn was_late_before(&self, other: &Self) -> bool {
        self.ran > other.ran.saturating_add(self.late())
    }

    /// Returns whether a submission of this context has certainly ended while the present one of the other ran.
    fn was_served_beside(&self, other: &Self) -> bool {
        self.served.is_some_and(|ago| ago.saturating_add(LATE) < other.ran)
    }

    fn takes_far_longer_than(&self, other: &Self) -> bool {
        let is_far = |usual: Duration| {
            self.usual.is_none_or(|own| own > usual.saturating_mul(FAR_LONGER).saturating_add(LATE))
        };
        other.usual.is_some_and(is_far)
    }
}

/// Returns the context that blocks another. If several do: one that was late before all others began, else the one that [`goes_first`].
pub(crate) fn in_the_way<Id: Copy + Ord>(running: &[Running<Id>]) -> Option<Running<Id>> {
    let is_other = |one: &Running<Id>, other: &Running<Id>| other.id != one.id;
    let holds_any_up =
        |one: &&Running<Id>| running.iter().any(|other| is_other(one, other) && one.holds_up(other));
    let before_all =
        |one: &&Running<Id>| running.iter().all(|other| !is_other(one, other) || one.was_late_before(other));
    let guilty: Vec<_> = running.iter().filter(holds_any_up).copied().collect();
    guilty.iter().find(before_all).copied().or_else(|| goes_first(&guilty))
}

/// Returns the context with the longest usual time, where none counts as the longest. Of equal ones: the one that had the most of the GPU.
pub(crate) fn goes_first<Id: Copy + Ord>(running: &[Running<Id>]) -> Option<Running<Id>> {
    let usual = |one: &Running<Id>| one.usual.unwrap_or(Duration::MAX);
    running.iter().max_by_key(|one| (usual(one), one.charged, one.ran, Reverse(one.id))).copied()
}

/// Returns the context that runs longest.
pub(crate) fn longest<Id: Copy + Ord>(running: &[Running<Id>]) -> Option<Running<Id>> {
    running.iter().max_by_key(|one| (one.ran, Reverse(one.id))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn running(id: u32, ran: u32, usual: Option<u32>) -> Running<u32> {
        let (ran, usual) = (ran * MS, usual.map(|usual| usual * MS));
        Running { id, ran, charged: ran, usual, served: None }
    }

    /// Returns the blamed context, which is the same in any order of the numbers and of the list.
    fn blamed(one: Running<u32>, other: Running<u32>) -> Running<u32> {
        let named = |id, running| Running { id, ..running };
        let all = [(1, 2), (2, 1)].map(|(first, second)| {
            let pair = [named(first, one), named(second, other)];
            let reversed = [pair[1], pair[0]];
            let found = [in_the_way(&pair).unwrap(), in_the_way(&reversed).unwrap()];
            assert_eq!(found[0].id, found[1].id);
            if found[0].id == pair[0].id { one } else { other }
        });
        assert_eq!(all[0].ran, all[1].ran, "the number decides");
        all[0]
    }

    #[test]
    fn short_kernels_that_stop_when_an_endless_one_begins_are_not_in_its_way() {
        for (short, endless) in [(2002, 2000), (2000, 2002), (2049, 2001), (1990, 2040)] {
            let blamed = blamed(running(1, short, Some(2)), running(2, endless, None));
            assert_eq!(blamed.usual, None, "short for {short} ms, endless for {endless} ms");
        }
    }

    #[test]
    fn a_program_that_hangs_late_is_in_the_way_of_who_comes_then() {
        let late = running(1, 5000, Some(2));
        for newcomer in [running(2, 300, None), running(2, 4000, None), running(2, 4000, Some(1))] {
            assert_eq!(blamed(late, newcomer).ran, late.ran);
        }
    }

    #[test]
    fn who_takes_long_each_time_is_in_the_way_of_who_does_not() {
        assert_eq!(blamed(running(1, 3000, Some(2000)), running(2, 3100, Some(2))).ran, 3000 * MS);
        assert_eq!(blamed(running(1, 3000, Some(2000)), running(2, 2900, None)).ran, 2900 * MS);
    }

    #[test]
    fn equal_neighbours_are_in_nobodys_way() {
        for usual in [None, Some(2), Some(2000)] {
            for (one, other) in [(17_000, 17_000), (17_000, 16_800), (9000, 9240)] {
                let pair = [running(1, one, usual), running(2, other, usual)];
                assert!(in_the_way(&pair).is_none(), "{pair:?}");
                assert!(pair[0].is_abreast_of(&pair[1]));
            }
        }
        let pair = [running(1, 12_000, Some(1000)), running(2, 12_500, Some(3000))];
        assert!(in_the_way(&pair).is_none(), "equal enough");
        assert!(in_the_way(&[running(1, 60_000, None)]).is_none(), "alone");
        assert!(in_the_way::<u32>(&[]).is_none());
    }

    /// One context began seconds before the other, whose short submissions ended while the first ran.
    #[test]
    fn who_does_not_keep_the_other_from_the_gpu_is_not_in_its_way() {
        for usual in [None, Some(2), Some(2000)] {
            let first = running(1, 9000, usual);
            let served = |ago: u32| Running { served: Some(ago * MS), ..running(2, 6000, Some(2)) };
            assert!(in_the_way(&[first, served(6010)]).is_none(), "{usual:?}");
            assert_eq!(blamed(first, served(9010)).ran, first.ran, "served before only");
            assert_eq!(blamed(first, served(8900)).ran, first.ran, "perhaps before");
        }
    }

    /// A context that lets the submissions of one context end may still block another.
    #[test]
    fn who_serves_one_is_still_in_the_way_of_another() {
        let hog = running(1, 9000, None);
        let friend = Running { served: Some(1000 * MS), ..running(2, 900, Some(2)) };
        let victim = Running { served: Some(9000 * MS), ..running(3, 8990, Some(2)) };
        assert_eq!(in_the_way(&[hog, friend, victim]).map(|one| one.id), Some(hog.id));
    }

    #[test]
    fn of_those_of_which_nothing_is_known_the_one_that_was_late_before_is_in_the_way() {
        assert_eq!(blamed(running(1, 900, None), running(2, 2000, None)).ran, 2000 * MS);
        assert_eq!(goes_first(&[running(1, 3000, None), running(2, 2990, None)]).unwrap().ran, 3000 * MS);
    }

    #[test]
    fn one_that_stopped_is_starved_and_one_that_is_slower_is_not() {
        assert!(running(1, 300, Some(2)).is_starved(2));
        assert!(!running(1, 250, Some(2)).is_starved(2));
        assert!(!running(1, 4000, Some(1000)).is_starved(2));
        assert!(!running(1, 60_000, None).is_starved(2));
    }

    #[test]
    fn who_runs_longer_has_an_equal_unless_it_was_late_before_or_takes_longer_each_time() {
        let [short, long] = [running(1, 4, Some(2)), running(2, 12_000, Some(2))];
        assert_eq!(longest(&[short, long]).map(|one| one.id), Some(2));
        assert!(!long.is_equal_to(&short));
        for usual in [None, Some(2), Some(2000)] {
            assert!(running(1, 12_000, usual).is_equal_to(&running(2, 11_900, usual)), "{usual:?}");
        }
        assert!(!running(1, 12_000, Some(20_000)).is_equal_to(&short));
    }
}
