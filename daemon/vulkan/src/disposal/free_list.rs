//! A free list of pieces that are kept to be used again: how much, for how long, and which piece is found again. It knows neither drivers nor clocks.

use crate::backing::reuse_key::ReuseKey;
use config::PerHeap;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bounds on the pieces that are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Bytes.
    pub bytes: PerHeap<u64>,
    /// Pieces.
    pub pieces: usize,
    /// The time for which a piece is kept.
    pub age: Duration,
}

/// The pieces that are kept, the oldest first.
#[derive(Debug)]
pub(crate) struct FreeList<T> {
    kept: VecDeque<Kept<T>>,
    bytes: PerHeap<u64>,
    bounds: Bounds,
}

#[derive(Debug)]
struct Kept<T> {
    key: ReuseKey,
    since: Instant,
    what: T,
}

impl<T> FreeList<T> {
    /// An empty list.
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { kept: VecDeque::new(), bytes: PerHeap::default(), bounds }
    }

    /// Keeps a piece from `now` on; returns the pieces that have to go: those kept for the longest time, or the new piece if it is too large.
    pub(crate) fn put(&mut self, key: ReuseKey, what: T, now: Instant) -> Vec<T> {
        let most = *self.bounds.bytes.of(key.heap);
        if key.size > most || self.bounds.pieces == 0 {
            return vec![what];
        }
        let mut gone = Vec::new();
        while self.kept.len() >= self.bounds.pieces {
            gone.extend(self.remove(0));
        }
        while *self.bytes.of(key.heap) > most - key.size {
            let Some(oldest) = self.kept.iter().position(|kept| kept.key.heap == key.heap) else { break };
            gone.extend(self.remove(oldest));
        }
        *self.bytes.of(key.heap) += key.size;
        self.kept.push_back(Kept { key, since: now, what });
        gone
    }

    /// Takes the piece that was kept last of those with this key that `fit`.
    pub(crate) fn take(&mut self, key: &ReuseKey, fits: impl Fn(&T) -> bool) -> Option<T> {
        let last = self.kept.iter().rposition(|kept| kept.key == *key && fits(&kept.what))?;
        self.remove(last)
    }

    /// The pieces that are kept.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ReuseKey, &T)> {
        self.kept.iter().map(|kept| (&kept.key, &kept.what))
    }

    /// Takes the pieces that are too old.
    pub(crate) fn take_old(&mut self, now: Instant) -> Vec<T> {
        let age = self.bounds.age;
        let old = self.kept.iter().take_while(|kept| now.saturating_duration_since(kept.since) >= age);
        (0..old.count()).filter_map(|_| self.remove(0)).collect()
    }

    /// The time at which the next piece will be too old.
    pub(crate) fn next_old(&self) -> Option<Instant> {
        self.kept.front().map(|kept| kept.since + self.bounds.age)
    }

    /// Takes all pieces for which `goes` is true.
    pub(crate) fn take_all(&mut self, goes: impl Fn(&T) -> bool) -> Vec<T> {
        let mut gone = Vec::new();
        for at in (0..self.kept.len()).rev() {
            if goes(&self.kept[at].what) {
                gone.extend(self.remove(at));
            }
        }
        gone
    }

    /// Sets the time for which pieces are kept from now on.
    #[cfg(test)]
    pub(crate) fn set_age(&mut self, age: Duration) {
        self.bounds.age = age;
    }

    fn remove(&mut self, at: usize) -> Option<T> {
        let Kept { key, what, .. } = self.kept.remove(at)?;
        *self.bytes.of(key.heap) -= key.size;
        Some(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Heap;

    const AGE: Duration = Duration::from_secs(2);

    fn free_list(device: u64, host: u64, pieces: usize) -> FreeList<u32> {
        FreeList::new(Bounds { bytes: PerHeap { device, host }, pieces, age: AGE })
    }

    fn like(heap: Heap, size: u64) -> ReuseKey {
        ReuseKey { heap, size, type_index: 0, flags: 0, mask: 0 }
    }

    #[test]
    fn the_last_of_those_that_are_alike_and_fit_is_found_once() {
        let (mut free_list, now) = (free_list(100, 100, 10), Instant::now());
        let wanted = like(Heap::Host, 10);
        for (number, kept) in
            [wanted, wanted, wanted, like(Heap::Device, 10), like(Heap::Host, 11)].iter().enumerate()
        {
            assert!(free_list.put(*kept, number as u32, now).is_empty());
        }
        for other in [
            ReuseKey { type_index: 1, ..wanted },
            ReuseKey { flags: 2, ..wanted },
            ReuseKey { mask: 1, ..wanted },
            ReuseKey { size: 9, ..wanted },
        ] {
            assert_eq!(free_list.take(&other, |_| true), None, "{other:?}");
        }
        assert_eq!(free_list.take(&wanted, |number| *number != 2), Some(1));
        assert_eq!(free_list.take(&wanted, |_| true), Some(2));
        assert_eq!(free_list.take(&wanted, |_| true), Some(0));
        assert_eq!(free_list.take(&wanted, |_| true), None);
        assert_eq!(free_list.take(&like(Heap::Device, 10), |_| true), Some(3));
    }

    #[test]
    fn the_oldest_of_a_heap_makes_room_and_what_is_too_large_is_not_kept() {
        let (mut free_list, now) = (free_list(10, 100, 10), Instant::now());
        assert!(free_list.put(like(Heap::Device, 4), 1, now).is_empty());
        assert!(free_list.put(like(Heap::Host, 60), 2, now).is_empty());
        assert!(free_list.put(like(Heap::Host, 40), 3, now).is_empty());
        assert_eq!(free_list.put(like(Heap::Host, 30), 4, now), [2]);
        assert_eq!(free_list.put(like(Heap::Host, 100), 5, now), [3, 4]);
        assert_eq!(free_list.put(like(Heap::Host, 101), 6, now), [6]);
        assert_eq!(free_list.put(like(Heap::Device, 11), 7, now), [7]);
        assert_eq!(free_list.take(&like(Heap::Device, 4), |_| true), Some(1));
        // A piece that was taken counts no more.
        assert!(free_list.put(like(Heap::Device, 10), 8, now).is_empty());
        assert_eq!(free_list.take_all(|_| true), [8, 5]);
        assert!(free_list.next_old().is_none() && free_list.put(like(Heap::Host, 100), 9, now).is_empty());
    }

    #[test]
    fn so_many_are_kept_and_no_more() {
        let (mut few, now) = (free_list(100, 100, 2), Instant::now());
        assert!(few.put(like(Heap::Device, 1), 1, now).is_empty());
        assert!(few.put(like(Heap::Host, 1), 2, now).is_empty());
        assert_eq!(few.put(like(Heap::Host, 1), 3, now), [1]);
        assert_eq!(free_list(100, 100, 0).put(like(Heap::Host, 1), 4, now), [4]);
    }

    #[test]
    fn what_is_old_goes_and_what_is_not_stays() {
        let (mut free_list, start) = (free_list(100, 100, 10), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(free_list.next_old(), None);
        assert!(free_list.put(like(Heap::Host, 1), 1, start).is_empty());
        assert!(free_list.put(like(Heap::Device, 1), 2, start + second).is_empty());
        assert_eq!(free_list.next_old(), Some(start + AGE));
        assert!(free_list.take_old(start + AGE - Duration::from_nanos(1)).is_empty());
        assert_eq!(free_list.take_old(start + AGE), [1]);
        assert_eq!(free_list.next_old(), Some(start + second + AGE));
        assert_eq!(free_list.take_old(start + 2 * AGE), [2]);
        assert_eq!(free_list.next_old(), None);
    }
}
