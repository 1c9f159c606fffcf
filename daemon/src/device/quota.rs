//! A quota counts the amounts of a limited good that the contexts of a VM hold. This file is arithmetic only.
//!
//! No context is promised a fixed part, since the number of contexts to come is not known. Instead a context that takes must leave a part: an owner
//! may come to hold at most [`SHARE`] times the amount that is free afterwards. One owner alone gets seven eighths, the next seven eighths of the
//! rest, and so on; an owner that comes after any number of greedy ones still finds a part.

use config::SHARE;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// The name of a holder, which is never used again for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Owner(pub u64);

/// One quota.
#[derive(Debug)]
pub(crate) struct Quota {
    name: &'static str,
    total: u64,
    /// The bound on each owner, after the name of that limit.
    each: Option<(&'static str, u64)>,
    used: u64,
    held: FxHashMap<Owner, u64>,
}

impl Quota {
    /// Makes an unused quota of `total`; `name` is the name of the limit.
    pub(crate) fn new(name: &'static str, total: u64) -> Self {
        Self { name, total, each: None, used: 0, held: FxHashMap::default() }
    }

    /// Returns the quota with a further bound on each owner.
    pub(crate) fn with_each(self, name: &'static str, each: u64) -> Self {
        Self { each: Some((name, each)), ..self }
    }

    /// Sets the total. Amounts that were taken beyond it stay taken.
    pub(crate) fn limit(&mut self, total: u64) {
        self.total = total;
    }

    /// Takes `amount` for an owner.
    ///
    /// # Errors
    ///
    /// The name of the limit that is reached; nothing is taken.
    pub(crate) fn take(&mut self, owner: Owner, amount: u64) -> Result<(), &'static str> {
        self.take_as_if_gone(owner, amount, &[])
    }

    /// Does the same as [`Self::take`], as if the owners in `gone` had given all back. Until they have, more than the total may be taken.
    ///
    /// # Errors
    ///
    /// As those of [`Self::take`].
    pub(crate) fn take_as_if_gone(
        &mut self,
        owner: Owner,
        amount: u64,
        gone: &[Owner],
    ) -> Result<(), &'static str> {
        self.check(owner, amount, gone)?;
        if amount > 0 {
            self.used += amount;
            *self.held.entry(owner).or_default() += amount;
        }
        Ok(())
    }

    /// Returns whether [`Self::take_as_if_gone`] would succeed.
    ///
    /// # Errors
    ///
    /// The name of the limit that the amount would exceed.
    pub(crate) fn check(&self, owner: Owner, amount: u64, gone: &[Owner]) -> Result<(), &'static str> {
        let coming: u64 = gone.iter().map(|owner| self.held(*owner)).sum();
        let used = self.used - coming;
        let left = self.total.saturating_sub(used).checked_sub(amount).ok_or(self.name)?;
        let held = self.held(owner) + amount;
        if let Some((name, each)) = self.each
            && held > each
        {
            return Err(name);
        }
        // One more than the remaining amount counts: a very small total has no share to leave.
        if held > SHARE.saturating_mul(left.saturating_add(1)) {
            return Err(self.name);
        }
        Ok(())
    }

    /// Returns how much more an owner could take now.
    pub(crate) fn room(&self, owner: Owner) -> u64 {
        let (held, left) = (self.held(owner), self.total.saturating_sub(self.used));
        // An owner may hold SHARE times the amount that it leaves, and one more.
        let share = SHARE.saturating_mul(left.saturating_add(1)).saturating_sub(held) / (SHARE + 1);
        let own = self.each.map_or(u64::MAX, |(_, each)| each.saturating_sub(held));
        left.min(share).min(own)
    }

    /// Gives back an amount that was taken.
    pub(crate) fn give_back(&mut self, owner: Owner, amount: u64) {
        let Some(held) = self.held.get_mut(&owner) else { return };
        // An owner gives back the amount that it has and no more, even if a worker claims more.
        let amount = amount.min(*held);
        *held -= amount;
        self.used -= amount;
        if *held == 0 {
            self.held.remove(&owner);
        }
    }

    /// Counts an amount of one owner as another's from now on, regardless of the limits.
    pub(crate) fn pass_on(&mut self, from: Owner, to: Owner, amount: u64) {
        let amount = amount.min(self.held(from));
        self.give_back(from, amount);
        self.hold(to, amount);
    }

    /// Counts an amount that an owner holds already, regardless of the limits.
    pub(crate) fn hold(&mut self, owner: Owner, amount: u64) {
        if amount > 0 {
            *self.held.entry(owner).or_default() += amount;
            self.used += amount;
        }
    }

    /// Returns the amount that an owner holds.
    pub(crate) fn held(&self, owner: Owner) -> u64 {
        self.held.get(&owner).copied().unwrap_or(0)
    }

    /// Returns the amount that all hold together.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::most;

    const A: Owner = Owner(1);
    const B: Owner = Owner(2);

    /// Takes as much as the quota allows, one by one.
    fn hog(quota: &mut Quota, owner: Owner) -> u64 {
        while quota.take(owner, 1).is_ok() {}
        quota.held(owner)
    }

    #[test]
    fn a_hog_gets_most_and_leaves_the_next_its_share() {
        let mut quota = Quota::new("maps", 400);
        assert_eq!(hog(&mut quota, A), 350);
        assert_eq!(hog(&mut quota, A), most(400));
        assert_eq!(hog(&mut quota, B), 44);
        assert_eq!(hog(&mut quota, Owner(3)), 6);
        // The whole amount is taken now.
        assert_eq!(quota.take(A, 1), Err("maps"));
        quota.give_back(A, 350);
        assert_eq!((quota.used(), quota.held(A)), (50, 0));
        assert_eq!(quota.take(B, 200), Ok(()));
    }

    #[test]
    fn of_few_things_one_owner_may_hold_all() {
        for total in 0..=7 {
            assert_eq!(hog(&mut Quota::new("few", total), A), total);
            assert_eq!(most(total), total);
        }
        assert_eq!(hog(&mut Quota::new("few", 8), A), 7);
        for total in [8, 63, 64, 1000] {
            assert_eq!(hog(&mut Quota::new("some", total), A), most(total));
        }
    }

    #[test]
    fn the_room_of_an_owner_is_what_it_can_take_and_no_more() {
        for (total, each) in [(0, 9), (1, 9), (7, 3), (400, 1000), (400, 100), (1 << 40, 1 << 39)] {
            let mut quota = Quota::new("bytes", total).with_each("own bytes", each);
            for taken in [0, 1, total / 3, total / 2] {
                for owner in [A, B] {
                    let room = quota.room(owner);
                    assert_eq!(quota.check(owner, room, &[]), Ok(()), "{room} of {total}");
                    assert!(quota.check(owner, room + 1, &[]).is_err(), "{room} of {total}");
                }
                let _ = quota.take(A, taken);
            }
        }
        assert_eq!(Quota::new("bytes", u64::MAX).room(A), u64::MAX / (SHARE + 1));
    }

    #[test]
    fn sums_do_not_wrap() {
        let mut quota = Quota::new("bytes", u64::MAX).with_each("own bytes", u64::MAX);
        assert_eq!(quota.take(A, most(u64::MAX) + 16), Err("bytes"));
        assert_eq!(quota.take(A, most(u64::MAX)), Ok(()));
        assert_eq!(quota.take(A, u64::MAX), Err("bytes"));
        assert_eq!(quota.take(B, u64::MAX), Err("bytes"));
        let mut quota = Quota::new("bytes", 1 << 40).with_each("own bytes", 100);
        assert_eq!(quota.take(A, 101), Err("own bytes"));
        assert_eq!(quota.take(A, 100), Ok(()));
        assert_eq!(quota.take(A, 1), Err("own bytes"));
    }

    #[test]
    fn what_comes_back_can_be_reckoned_with() {
        let mut quota = Quota::new("rings", 64);
        quota.take(A, 56).unwrap();
        assert_eq!(quota.check(B, 40, &[]), Err("rings"));
        assert_eq!(quota.check(B, 40, &[A]), Ok(()));
        assert_eq!(quota.check(B, 60, &[A]), Err("rings"));
        assert_eq!(quota.take_as_if_gone(B, 40, &[A]), Ok(()));
        assert_eq!((quota.used(), quota.take(B, 1)), (96, Err("rings")));
        quota.give_back(A, u64::MAX);
        assert_eq!((quota.used(), quota.take(B, 1)), (40, Ok(())));
    }

    #[test]
    fn nobody_gives_back_more_than_it_has() {
        let mut quota = Quota::new("bytes", 100);
        quota.take(A, 10).unwrap();
        quota.take(B, 10).unwrap();
        quota.give_back(A, 100);
        quota.give_back(A, 1);
        assert_eq!((quota.used(), quota.held(A), quota.held(B)), (10, 0, 10));
        quota.pass_on(B, A, 4);
        quota.pass_on(B, A, 100);
        assert_eq!((quota.used(), quota.held(A), quota.held(B)), (10, 10, 0));
    }
}
