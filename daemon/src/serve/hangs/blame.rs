//! Finds out who keeps others from the GPU, as far as that can be told of contexts whose submissions do not end.
//!
//! A driver does not say what a GPU is busy with. What can be told from outside is how long submissions of a context took before, and since
//! when one does not end. A context that was served until another's submission began was held up by that; one that failed to end before the
//! other began was not. Knows no clock and no limits.

use protocol::ids::ContextId;
use std::cmp::Reverse;
use std::time::Duration;

/// A submission that could run for so long and has not ended is held up by others, if there are others. Nor does anybody know more exactly
/// who began first.
pub(super) const WAITING_MIN: Duration = Duration::from_millis(250);

/// A context with a submission that could run: it runs, or others keep it from that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    /// The context's id.
    pub ctx_id: ContextId,
    /// The time for which the submission could run so far.
    pub ran: Duration,
    /// The part of that in which it had the GPU, if those that run shared it evenly.
    pub charged: Duration,
    /// The time that its submissions took so far; none if none has ended.
    pub usual: Option<Duration>,
}

impl Running {
    /// Returns whether another may have held it up: one that began before this was late.
    fn may_wait_for(&self, other: &Self) -> bool {
        let late = self.usual.unwrap_or_default().saturating_add(WAITING_MIN);
        self.ran <= other.ran.saturating_add(late)
    }

    /// Returns whether it cannot have had its part of the GPU, of which there are so many: with that it would have ended.
    pub(super) fn is_starved(&self, parts: u32) -> bool {
        self.usual.is_some_and(|usual| self.ran > usual.saturating_mul(2 * parts).saturating_add(WAITING_MIN))
    }
}

/// The one that is in the way of the others. If all of them may wait for another: the one whose submissions took the longest so far, above
/// all if none has ended. If that tells nothing: the one that had the most of the GPU.
pub(super) fn in_the_way(running: &[Running]) -> Option<Running> {
    let may_wait =
        |one: &Running| running.iter().any(|other| other.ctx_id != one.ctx_id && one.may_wait_for(other));
    let most = |one: &&Running| (one.charged, one.ran, Reverse(one.ctx_id.0));
    let before_all = running.iter().filter(|one| !may_wait(one)).max_by_key(most);
    let usual = |one: &Running| one.usual.unwrap_or(Duration::MAX);
    before_all.or_else(|| running.iter().max_by_key(|one| (usual(one), most(one)))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn running(ctx_id: u32, ran: u32, usual: Option<u32>) -> Running {
        let (ran, usual) = (ran * MS, usual.map(|usual| usual * MS));
        Running { ctx_id: ContextId(ctx_id), ran, charged: ran, usual }
    }

    /// In any order of their numbers, and of the list.
    fn blamed(one: Running, other: Running) -> Running {
        let named = |number, running| Running { ctx_id: ContextId(number), ..running };
        let all = [(1, 2), (2, 1)].map(|(first, second)| {
            let pair = [named(first, one), named(second, other)];
            let reversed = [pair[1], pair[0]];
            let found = [in_the_way(&pair).unwrap(), in_the_way(&reversed).unwrap()];
            assert_eq!(found[0].ctx_id, found[1].ctx_id);
            if found[0].ctx_id == pair[0].ctx_id { one } else { other }
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
    fn of_those_of_which_nothing_is_known_the_one_that_ran_longest_is_in_the_way() {
        assert_eq!(blamed(running(1, 3000, None), running(2, 2990, None)).ran, 3000 * MS);
        assert_eq!(blamed(running(1, 900, None), running(2, 2000, None)).ran, 2000 * MS);
        assert_eq!(in_the_way(&[running(1, 900, None)]).unwrap().ran, 900 * MS);
        assert!(in_the_way(&[]).is_none());
    }

    #[test]
    fn one_that_stopped_is_starved_and_one_that_is_slower_is_not() {
        assert!(running(1, 300, Some(2)).is_starved(2));
        assert!(!running(1, 250, Some(2)).is_starved(2));
        assert!(!running(1, 4000, Some(1000)).is_starved(2));
        assert!(!running(1, 60_000, None).is_starved(2));
    }
}
