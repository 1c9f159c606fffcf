//! Addresses for memory that another process maps at the same address as this one: a driver may have given the address to a guest.
//!
//! The addresses lie in a range that no other memory uses: executables, heaps, stacks and the addresses that the kernel chooses lie elsewhere. Each
//! process begins at a random address in the range. So the files that a successor has placed of its own seldom occupy the addresses of the files that
//! it takes over. This file knows only addresses; the mapping code says whether an address is free.

use rustix::io::Errno;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The range: above the addresses of sanitizers, below those that the kernel chooses if it goes upwards (a third of the addresses of x86-64, a
/// quarter of those of aarch64). A processor with fewer addresses can map nothing there.
pub(super) const RANGE: Range<u64> = 0x1000_0000_0000..0x2800_0000_0000;

/// The alignment of files of at least this size, so that huge pages can hold them.
const HUGE: u64 = 2 << 20;

/// The number of addresses that a process tries before it leaves the choice to the kernel. Each step is twice as long as the one before, so that the
/// tries get past any mapping there.
const PLACES_ASKED: u32 = 24;

/// The addresses of one range, given out upwards and then from its start again.
#[derive(Debug)]
pub(super) struct Places {
    range: Range<u64>,
    next: AtomicU64,
}

/// The places of this process.
pub(super) static PLACES: LazyLock<Places> = LazyLock::new(|| {
    let random = RandomState::new().build_hasher().finish();
    Places::new(RANGE, RANGE.start + random % (RANGE.end - RANGE.start))
});

impl Places {
    /// Makes the places of a range. The first one is at `start`, or at the next aligned address.
    fn new(range: Range<u64>, start: u64) -> Self {
        Self { range, next: AtomicU64::new(start) }
    }

    /// Calls `map` with addresses for `len` bytes until it maps there, or fails for a reason other than a taken address.
    /// Returns none if the range has no place.
    pub(super) fn place<T>(&self, len: u64, mut map: impl FnMut(u64) -> Result<T, Errno>) -> Option<T> {
        let align = if len >= HUGE { HUGE } else { rustix::param::page_size() as u64 };
        for asked in 0..PLACES_ASKED {
            match map(self.claim(len, align)?) {
                Err(Errno::EXIST) => self.pass_over(HUGE << asked),
                outcome => return outcome.ok(),
            }
        }
        None
    }

    /// Takes the next `len` bytes of the range; none if the range is too small.
    fn claim(&self, len: u64, align: u64) -> Option<u64> {
        let fits = |start: &u64| self.range.end.checked_sub(len).is_some_and(|last| *start <= last);
        let start = |next: u64| {
            let following = next.checked_next_multiple_of(align).filter(fits);
            following.or_else(|| self.range.start.checked_next_multiple_of(align).filter(fits))
        };
        let after = |next| start(next).map(|start| start + len);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok().and_then(start)
    }

    /// Passes over so many bytes, round the range.
    fn pass_over(&self, bytes: u64) {
        let Range { start, end } = self.range;
        let after =
            |next: u64| Some(start + (next.saturating_sub(start).saturating_add(bytes)) % (end - start));
        // The function always returns a value.
        let _ = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
    }
}

/// Returns whether `len` bytes at `address` can be a place: they lie in the range, and begin at a page.
pub(super) fn is_place(address: u64, len: u64) -> bool {
    let end = address.checked_add(len);
    let inside = address >= RANGE.start && end.is_some_and(|end| end <= RANGE.end);
    inside && address.is_multiple_of(rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn places(start: u64) -> Places {
        Places::new(64 * MIB..256 * MIB, start)
    }

    #[test]
    fn places_go_up_and_large_ones_are_aligned_for_huge_pages() {
        let places = places(64 * MIB + 1);
        let placed = [4 * KIB, 64 * KIB, 2 * MIB, 4 * KIB, 3 * MIB].map(|len| places.place(len, Ok).unwrap());
        let base = 64 * MIB;
        assert_eq!(placed, [4 * KIB, 8 * KIB, 2 * MIB, 4 * MIB, 6 * MIB].map(|offset| base + offset));
    }

    #[test]
    fn places_wrap_round_at_the_end_of_the_range() {
        let places = places(255 * MIB);
        assert_eq!(places.place(MIB, Ok), Some(255 * MIB));
        assert_eq!(places.place(4 * KIB, Ok), Some(64 * MIB));
        let last = Places::new(64 * MIB..256 * MIB, 256 * MIB - 4 * KIB);
        assert_eq!(last.place(8 * KIB, Ok), Some(64 * MIB));
        assert_eq!(last.place(192 * MIB, Ok), Some(64 * MIB));
        // A start behind the range counts as its beginning.
        assert_eq!(Places::new(64 * MIB..256 * MIB, u64::MAX).place(KIB, Ok), Some(64 * MIB));
    }

    #[test]
    fn what_is_larger_than_the_range_has_no_place() {
        for len in [192 * MIB + 1, 257 * MIB, u64::MAX - MIB, u64::MAX] {
            assert_eq!(places(64 * MIB).place(len, Ok), None, "{len}");
        }
    }

    #[test]
    fn what_is_in_the_way_is_passed_over_in_a_few_tries() {
        let (places, mut tries) = (places(64 * MIB), 0);
        let taken = 64 * MIB..160 * MIB;
        let map = |at: u64| {
            tries += 1;
            if taken.contains(&at) { Err(Errno::EXIST) } else { Ok(at) }
        };
        let at = places.place(4 * KIB, map).unwrap();
        assert!((160 * MIB..256 * MIB).contains(&at));
        assert!(tries < 10, "{tries} tries");
    }

    #[test]
    fn a_full_range_ends_after_a_bounded_number_of_tries_and_another_error_at_once() {
        let mut tries = 0;
        let mut fail = |error| {
            tries = 0;
            let placed = places(64 * MIB).place(4 * KIB, |_| {
                tries += 1;
                Err::<(), _>(error)
            });
            assert_eq!(placed, None);
            tries
        };
        assert_eq!(fail(Errno::EXIST), PLACES_ASKED);
        assert_eq!(fail(Errno::NOMEM), 1);
    }

    #[test]
    fn only_whole_pages_inside_of_the_range_are_a_place() {
        assert!(is_place(RANGE.start, 4 * KIB));
        assert!(is_place(RANGE.end - 64 * KIB, 64 * KIB));
        for (address, len) in [
            (0, 4 * KIB),
            (4 * KIB, 4 * KIB),
            (RANGE.start + 1, 4 * KIB),
            (RANGE.start - 64 * KIB, 64 * KIB),
            (RANGE.start - 64 * KIB, 128 * KIB),
            (RANGE.end - 64 * KIB, 128 * KIB),
            (RANGE.end, 4 * KIB),
            (0xffff_8000_0000_0000, 4 * KIB),
            (u64::MAX - 4 * KIB + 1, 4 * KIB),
            (RANGE.start, u64::MAX),
        ] {
            assert!(!is_place(address, len), "{address:#x} {len}");
        }
    }
}
