//! The slots of a memory file, through which contents of memory that only the driver uses pass from a worker to its successor.

use std::ops::Range;

/// The number and the size of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    count: u32,
    bytes: u64,
}

impl Slots {
    /// The number of slots, at most: those that one worker copies out of and the other into, and those on the way.
    pub const COUNT_MAX: u32 = 4;
    /// The bytes of a slot of ours, at most. Copying so many takes longer than a message. More would lengthen a program's pause, in which the memory
    /// of the slots is made and pinned.
    pub const BYTES: u64 = 4 << 20;
    /// The bytes of a slot that another program announces, at most.
    pub const BYTES_MAX: u64 = 16 << 20;

    /// Returns the slots for so many bytes in all: whole pages, at least one.
    pub fn for_bytes(all: u64) -> Self {
        let bytes = all.min(Self::BYTES);
        let count = u32::try_from(all.div_ceil(bytes)).unwrap_or(Self::COUNT_MAX);
        Self { count: count.min(Self::COUNT_MAX), bytes }
    }

    /// Returns the slots that another process announces; none if the number or the size is not what an honest worker announces.
    pub fn announced(count: u32, bytes: u64) -> Option<Self> {
        let page = rustix::param::page_size() as u64;
        let is_sound = (1..=Self::COUNT_MAX).contains(&count)
            && (page..=Self::BYTES_MAX).contains(&bytes)
            && bytes.is_multiple_of(page);
        is_sound.then_some(Self { count, bytes })
    }

    /// Returns the number of slots.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Returns the bytes of a slot.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of all slots.
    pub fn all(self) -> u64 {
        u64::from(self.count) * self.bytes
    }

    /// Returns the place of the slot that is used so many slots after the first, again and again in their order.
    pub fn place(self, at: u64) -> u64 {
        at % u64::from(self.count) * self.bytes
    }

    /// Returns the parts in which so many bytes pass, each with the place of its slot.
    pub fn parts(self, all: u64) -> impl Iterator<Item = (Range<u64>, u64)> {
        (0..all.div_ceil(self.bytes)).map(move |at| {
            let start = at * self.bytes;
            (start..all.min(start + self.bytes), self.place(at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_pass_through_the_slots_in_their_order() {
        let slots = Slots::announced(2, 4096).unwrap();
        let parts: Vec<_> = slots.parts(3 * 4096 - 8).collect();
        assert_eq!(parts, [(0..4096, 0), (4096..8192, 4096), (8192..12280, 0)]);
        assert_eq!(slots.parts(0).count(), 0);
    }

    #[test]
    fn what_is_made_for_any_number_of_bytes_is_what_may_be_announced() {
        for pages in [1, 1024, 1025, 1 << 30] {
            let slots = Slots::for_bytes(pages * 4096);
            assert_eq!(Slots::announced(slots.count(), slots.bytes()), Some(slots), "{pages} pages");
        }
        let announced = [(0, 4096), (5, 4096), (1, 0), (1, 4095), (1, 6000), (1, Slots::BYTES_MAX + 4096)];
        assert_eq!(announced.map(|(count, bytes)| Slots::announced(count, bytes)), [None; 6]);
    }
}
