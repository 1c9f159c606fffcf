//! The order of the locks between a command that submits and the gate. The type of each lock states its rank.
//!
//! A thread that holds one of these locks never waits for one of the same or a lower rank. In a debug build, which most tests use, a thread
//! that does panics. It may try to take such a lock ([`Ranked::try_lock`]).
//!
//! | rank | lock | is held |
//! | --- | --- | --- |
//! | [`TURN`] | the gate's turn | while ready submissions are counted, and while one of them passes |
//! | [`HELD_QUEUE`] | a held queue | while submissions get their numbers, and while its first entry is taken out |
//! | [`HOST_QUEUE`] | a queue of the host | while the driver is called with it |
//! | [`FENCE`] | the last submission of a fence | while a submission takes the fence along, or the fence is reset |
//! | [`QUEUES`] | the queues of a device | while one of the queues is asked |
//! | [`SUBMISSIONS`] | the submissions of a queue | while their stages change, never while the driver submits |
//! | [`MEASURED`] | the times up to which a queue's work is known | while the gate is told of an end |
//! | [`COUNTS`] | the counts of the gate | while they change |
//! | [`OBJECTS`] | the table of objects | while an object is looked up, or the driver is called about one |

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::fmt::{Debug, Formatter};
use std::ops::{Deref, DerefMut};

/// The rank of the gate's turn.
pub(crate) const TURN: u8 = 0;
/// The rank of held queues.
pub(crate) const HELD_QUEUE: u8 = 1;
/// The rank of the host's queues.
pub(crate) const HOST_QUEUE: u8 = 2;
/// The rank of the last submissions of fences.
pub(crate) const FENCE: u8 = 3;
/// The rank of the queues of a device.
pub(crate) const QUEUES: u8 = 4;
/// The rank of the submissions of a queue.
pub(crate) const SUBMISSIONS: u8 = 5;
/// The rank of the times up to which a queue's work is known.
pub(crate) const MEASURED: u8 = 6;
/// The rank of the counts of the gate.
pub(crate) const COUNTS: u8 = 7;
/// The rank of the table of objects.
pub(crate) const OBJECTS: u8 = 8;
#[cfg(debug_assertions)]
const RANKS: usize = 9;

/// A lock of a rank.
#[derive(Default)]
pub(crate) struct Ranked<const RANK: u8, T>(Mutex<T>);

/// The right to a value for as long as this guard lives: a guard of the wrapped lock, and a note that this thread holds the lock.
pub(crate) struct RankedGuard<const RANK: u8, G> {
    guard: G,
    _noted: Noted<RANK>,
}

/// The right to a value that no other thread reads or changes.
pub(crate) type Exclusive<'a, const RANK: u8, T> = RankedGuard<RANK, MutexGuard<'a, T>>;
/// The right to read a value.
pub(crate) type ForReading<'a, const RANK: u8, T> = RankedGuard<RANK, RwLockReadGuard<'a, T>>;
/// The right to change a value.
pub(crate) type ForWriting<'a, const RANK: u8, T> = RankedGuard<RANK, RwLockWriteGuard<'a, T>>;

impl<const RANK: u8, T> Ranked<RANK, T> {
    /// Wraps a value.
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub(crate) fn lock(&self) -> Exclusive<'_, RANK, T> {
        let noted = Noted::above(RANK);
        RankedGuard { guard: self.0.lock(), _noted: noted }
    }

    /// Takes a further lock of this rank; all threads take such locks in the same order.
    pub(crate) fn lock_another(&self) -> Exclusive<'_, RANK, T> {
        let noted = Noted::above(RANK + 1);
        RankedGuard { guard: self.0.lock(), _noted: noted }
    }

    /// Takes the lock if no thread has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Exclusive<'_, RANK, T>> {
        self.0.try_lock().map(|guard| RankedGuard { guard, _noted: Noted::above(u8::MAX) })
    }
}

impl<const RANK: u8, G: Deref> Deref for RankedGuard<RANK, G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<const RANK: u8, G: DerefMut> DerefMut for RankedGuard<RANK, G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<const RANK: u8, T: Debug> Debug for Ranked<RANK, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A lock of a rank that several threads may have for reading.
#[derive(Default)]
pub(crate) struct RankedShared<const RANK: u8, T>(RwLock<T>);

impl<const RANK: u8, T> RankedShared<RANK, T> {
    /// Wraps a value.
    pub(crate) const fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// Waits until no thread changes the value, and takes the lock.
    #[inline]
    pub(crate) fn read(&self) -> ForReading<'_, RANK, T> {
        let noted = Noted::above(RANK);
        RankedGuard { guard: self.0.read(), _noted: noted }
    }

    /// Waits until no other thread has the lock, and takes it.
    #[inline]
    pub(crate) fn write(&self) -> ForWriting<'_, RANK, T> {
        let noted = Noted::above(RANK);
        RankedGuard { guard: self.0.write(), _noted: noted }
    }
}

impl<const RANK: u8, T> ForReading<'_, RANK, T> {
    /// Gives way to a thread that waits for the right to change the value.
    pub(crate) fn bump(&mut self) {
        RwLockReadGuard::bump(&mut self.guard);
    }
}

impl<const RANK: u8, T: Debug> Debug for RankedShared<RANK, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A note that this thread holds a lock of a rank, in a debug build.
struct Noted<const RANK: u8>;

#[cfg(debug_assertions)]
thread_local! {
    /// The number of locks of each rank that this thread holds.
    static HELD: std::cell::Cell<[u8; RANKS]> = const { std::cell::Cell::new([0; RANKS]) };
}

impl<const RANK: u8> Noted<RANK> {
    #[cfg(debug_assertions)]
    fn above(rank: u8) -> Self {
        if let Some(held) = held_from(rank) {
            panic!("a lock of rank {RANK} is taken while one of rank {held} is held");
        }
        let mut held = HELD.get();
        held[usize::from(RANK)] += 1;
        HELD.set(held);
        Self
    }

    #[cfg(not(debug_assertions))]
    #[inline]
    fn above(_: u8) -> Self {
        Self
    }
}

/// Returns the highest rank of the locks that this thread holds, if it is this rank or a higher one.
#[cfg(debug_assertions)]
fn held_from(rank: u8) -> Option<usize> {
    HELD.get().iter().rposition(|count| *count > 0).filter(|held| *held >= usize::from(rank))
}

#[cfg(debug_assertions)]
impl<const RANK: u8> Drop for Noted<RANK> {
    fn drop(&mut self) {
        let mut held = HELD.get();
        held[usize::from(RANK)] -= 1;
        HELD.set(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_by_their_ranks() {
        let (low, high) = (Ranked::<HOST_QUEUE, _>::new(1), Ranked::<COUNTS, _>::new(2));
        let first = low.lock();
        assert_eq!(*first + *high.lock(), 3);
        drop(first);
        let second = high.lock();
        assert_eq!(low.try_lock().map(|first| *first + *second), Some(3));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn another_order_is_found() {
        let high = Ranked::<COUNTS, _>::new(2);
        let second = high.lock();
        assert_eq!([HOST_QUEUE, COUNTS, OBJECTS].map(held_from), [Some(7), Some(7), None]);
        drop(second);
        assert_eq!(held_from(TURN), None);
    }

    #[test]
    fn several_of_one_rank_are_taken_with_a_word_for_it() {
        let both = [1, 2].map(Ranked::<HOST_QUEUE, _>::new);
        let held: Vec<_> = both.iter().map(Ranked::lock_another).collect();
        assert_eq!(held.iter().map(|one| **one).sum::<i32>(), 3);
        drop(held);
        drop(both[0].lock());
    }
}
