//! Layout arithmetic of a ring: where its parts lie in the shared resource, and which bytes to copy.
//!
//! Pure numbers: no memory, no atomics, no waiting. Counters are free-running `u32` bytes; a position in the buffer is the
//! counter modulo the buffer's size (Venus protocol, `vkCreateRingMESA`).

use std::ops::Range;

use thiserror::Error;

use super::generated::RingCreateInfoMESA;

/// Validated places of a ring's parts, as byte offsets from the start of the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// The `u32` that the device advances after each executed command.
    pub head: usize,
    /// The `u32` that the driver advances.
    pub tail: usize,
    /// The `u32` of `VkRingStatusFlagBitsMESA`.
    pub status: usize,
    /// The command bytes; the length is a power of two.
    pub buffer: Range<usize>,
    /// Words that `vkWriteRingExtraMESA` stores to; may be empty.
    pub extra: Range<usize>,
}

/// The reason for which a ring cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// The ring does not lie inside the resource.
    #[error("ring lies outside of its resource")]
    OutsideResource,
    /// A part does not lie inside the ring.
    #[error("{0} lies outside of the ring")]
    OutsideRing(&'static str),
    /// A part does not start at a multiple of 4 bytes.
    #[error("{0} is not aligned to 4 bytes")]
    Misaligned(&'static str),
    /// Two parts share bytes.
    #[error("{0} and {1} overlap")]
    Overlap(&'static str, &'static str),
    /// The buffer's size is not a power of two between 4 bytes and 16 MiB.
    #[error("buffer of {0} bytes")]
    BufferSize(u64),
    /// The driver claims to have written more than the buffer holds.
    #[error("{0} bytes pending in a smaller buffer")]
    Pending(u32),
    /// The driver's tail is this number of bytes behind the device's position. A single driver only increases the tail.
    #[error(
        "the tail went back by {0} bytes, as if two processes wrote; a child that a program forks must not use the program's device: see docs/clients.md"
    )]
    WentBack(u32),
}

impl RingLayout {
    /// Checks a create info against the size of the resource it names.
    pub fn validate(info: &RingCreateInfoMESA<'_>, resource_len: usize) -> Result<Self, RingError> {
        let start = usize::try_from(info.offset).map_err(|_| RingError::OutsideResource)?;
        let size = usize::try_from(info.size).map_err(|_| RingError::OutsideResource)?;
        if start.checked_add(size).is_none_or(|end| end > resource_len) {
            return Err(RingError::OutsideResource);
        }
        if !info.buffer_size.is_power_of_two() || !(4..=MAX_BUFFER).contains(&info.buffer_size) {
            return Err(RingError::BufferSize(info.buffer_size));
        }
        let part = |name, offset: u64, len: u64| part(name, start, size, offset, len);
        let parts = [
            ("head", part("head", info.head_offset, WORD)?),
            ("tail", part("tail", info.tail_offset, WORD)?),
            ("status", part("status", info.status_offset, WORD)?),
            ("buffer", part("buffer", info.buffer_offset, info.buffer_size)?),
            ("extra", part("extra", info.extra_offset, info.extra_size)?),
        ];
        for (at, (name, range)) in parts.iter().enumerate() {
            let others = parts.iter().take(at);
            if let Some((other, _)) = others.into_iter().find(|(_, other)| overlap(range, other)) {
                return Err(RingError::Overlap(other, name));
            }
        }
        let [head, tail, status, buffer, extra] = parts.map(|(_, range)| range);
        Ok(Self { head: head.start, tail: tail.start, status: status.start, buffer, extra })
    }

    /// Bytes between the device's position and the driver's tail.
    pub fn pending(&self, position: u32, tail: u32) -> Result<u32, RingError> {
        let pending = tail.wrapping_sub(position);
        if pending as usize > self.buffer.len() {
            let back = position.wrapping_sub(tail);
            return Err(if back < pending { RingError::WentBack(back) } else { RingError::Pending(pending) });
        }
        Ok(pending)
    }

    /// Returns the two ranges in which `len` bytes at a counter position lie: up to the end of the buffer, and from its start. `len` must
    /// not exceed the buffer, as [`RingLayout::pending`] guarantees; more is cut off.
    pub fn copy_ranges(&self, position: u32, len: u32) -> (Range<usize>, Range<usize>) {
        let size = self.buffer.len();
        let len = (len as usize).min(size);
        let at = position as usize & (size - 1);
        let first = len.min(size - at);
        let start = self.buffer.start;
        (start + at..start + at + first, start..start + len - first)
    }

    /// Place of the extra word at this offset, if there is one.
    pub fn extra_word(&self, offset: u64) -> Option<usize> {
        let offset = usize::try_from(offset).ok().filter(|offset| offset.is_multiple_of(4))?;
        let end = offset.checked_add(WORD as usize)?;
        (end <= self.extra.len()).then(|| self.extra.start + offset)
    }
}

/// Returns whether a ring that has executed up to `head` has reached `seqno`; both wrap.
pub fn has_reached(head: u32, seqno: u32) -> bool {
    head.wrapping_sub(seqno) < 1 << 31
}

fn part(
    name: &'static str,
    start: usize,
    size: usize,
    offset: u64,
    len: u64,
) -> Result<Range<usize>, RingError> {
    let outside = RingError::OutsideRing(name);
    let offset = usize::try_from(offset).map_err(|_| outside)?;
    let len = usize::try_from(len).map_err(|_| outside)?;
    if offset.checked_add(len).is_none_or(|end| end > size) {
        return Err(outside);
    }
    let at = start + offset;
    if !at.is_multiple_of(4) {
        return Err(RingError::Misaligned(name));
    }
    Ok(at..at + len)
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

/// Largest buffer, as other devices have it.
const MAX_BUFFER: u64 = 16 << 20;
/// Bytes of a counter.
const WORD: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout Mesa gives its instance ring.
    fn info() -> RingCreateInfoMESA<'static> {
        RingCreateInfoMESA {
            size: 131_268,
            head_offset: 0,
            tail_offset: 64,
            status_offset: 128,
            buffer_offset: 192,
            buffer_size: 131_072,
            extra_offset: 131_264,
            extra_size: 4,
            ..RingCreateInfoMESA::default()
        }
    }

    #[test]
    fn mesas_instance_ring_is_accepted() {
        let layout = RingLayout::validate(&info(), 135_168).expect("valid");
        assert_eq!((layout.head, layout.tail, layout.status), (0, 64, 128));
        assert_eq!((layout.buffer.clone(), layout.extra.clone()), (192..131_264, 131_264..131_268));
        assert_eq!(layout.extra_word(0), Some(131_264));
        assert_eq!(layout.extra_word(4), None);
    }

    #[test]
    fn ring_offset_shifts_every_part() {
        let shifted = RingCreateInfoMESA { offset: 4096, ..info() };
        let layout = RingLayout::validate(&shifted, 4096 + 131_268).expect("valid");
        assert_eq!((layout.head, layout.buffer.start), (4096, 4288));
    }

    #[test]
    fn ring_outside_of_its_resource_is_refused() {
        assert_eq!(RingLayout::validate(&info(), 131_267), Err(RingError::OutsideResource));
        let far = RingCreateInfoMESA { offset: u64::MAX, ..info() };
        assert_eq!(RingLayout::validate(&far, 135_168), Err(RingError::OutsideResource));
    }

    #[test]
    fn parts_outside_of_the_ring_are_refused() {
        let bad = RingCreateInfoMESA { tail_offset: 131_268, ..info() };
        assert_eq!(RingLayout::validate(&bad, 1 << 20), Err(RingError::OutsideRing("tail")));
        let bad = RingCreateInfoMESA { head_offset: u64::MAX - 3, ..info() };
        assert_eq!(RingLayout::validate(&bad, 1 << 20), Err(RingError::OutsideRing("head")));
        let bad = RingCreateInfoMESA { extra_size: 8, ..info() };
        assert_eq!(RingLayout::validate(&bad, 1 << 20), Err(RingError::OutsideRing("extra")));
    }

    #[test]
    fn overlapping_and_misaligned_parts_are_refused() {
        let bad = RingCreateInfoMESA { tail_offset: 0, ..info() };
        assert_eq!(RingLayout::validate(&bad, 1 << 20), Err(RingError::Overlap("head", "tail")));
        let bad = RingCreateInfoMESA { status_offset: 196, ..info() };
        assert_eq!(RingLayout::validate(&bad, 1 << 20), Err(RingError::Overlap("status", "buffer")));
        let bad = RingCreateInfoMESA { tail_offset: 66, ..info() };
        assert_eq!(RingLayout::validate(&bad, 1 << 20), Err(RingError::Misaligned("tail")));
    }

    /// The offset and the length of each part, and a function that moves it.
    type Move = fn(&mut RingCreateInfoMESA<'static>, u64);

    const PARTS: [(&str, u64, u64, Move); 5] = [
        ("head", 0, 4, |info, to| info.head_offset = to),
        ("tail", 64, 4, |info, to| info.tail_offset = to),
        ("status", 128, 4, |info, to| info.status_offset = to),
        ("buffer", 192, 131_072, |info, to| info.buffer_offset = to),
        ("extra", 131_264, 4, |info, to| info.extra_offset = to),
    ];

    fn moved(change: Move, to: u64) -> Result<RingLayout, RingError> {
        let mut info = RingCreateInfoMESA { size: 1 << 20, ..info() };
        change(&mut info, to);
        RingLayout::validate(&info, 1 << 20)
    }

    #[test]
    fn each_part_lies_inside_at_words_and_apart_from_the_others() {
        for (at, (name, start, len, change)) in PARTS.into_iter().enumerate() {
            let last = (1 << 20) - len;
            assert!(moved(change, last).is_ok(), "{name} at the end");
            assert_eq!(moved(change, last + 4), Err(RingError::OutsideRing(name)));
            assert_eq!(moved(change, u64::MAX - 3), Err(RingError::OutsideRing(name)));
            for odd in 1..4 {
                assert_eq!(moved(change, 600_000 + odd), Err(RingError::Misaligned(name)));
            }
            for (other, (of, to, bytes, _)) in PARTS.into_iter().enumerate().filter(|(other, _)| *other != at)
            {
                let (one, two) = if at < other { (name, of) } else { (of, name) };
                let expected = Err(RingError::Overlap(one, two));
                // On its first word, and on its last.
                assert_eq!(moved(change, to), expected);
                assert_eq!(moved(change, to + bytes - 4), expected);
            }
            assert!(moved(change, start).is_ok());
        }
    }

    #[test]
    fn parts_that_touch_do_not_overlap() {
        let close = RingCreateInfoMESA {
            size: 32,
            tail_offset: 4,
            status_offset: 8,
            buffer_offset: 12,
            buffer_size: 16,
            extra_offset: 28,
            ..info()
        };
        let layout = RingLayout::validate(&close, 32).expect("valid");
        assert_eq!((layout.tail, layout.status, layout.buffer, layout.extra), (4, 8, 12..28, 28..32));
        for size in 28..32 {
            let short = RingCreateInfoMESA { size, ..close };
            assert_eq!(
                RingLayout::validate(&short, 32),
                Err(RingError::OutsideRing("extra")),
                "{size} bytes"
            );
        }
        // The range of extra words may be empty, at any offset.
        for extra_offset in [0, 12, 32] {
            let none = RingCreateInfoMESA { extra_size: 0, extra_offset, ..close };
            let layout = RingLayout::validate(&none, 32).expect("valid");
            assert_eq!((layout.extra.len(), layout.extra_word(0)), (0, None));
        }
    }

    #[test]
    fn a_ring_lies_in_its_resource_to_the_last_byte() {
        let size = 131_268;
        for (offset, len, is_inside) in
            [(0, size, true), (4, size, false), (4, size + 4, true), (4096, 135_364, true)]
        {
            let shifted = RingCreateInfoMESA { offset: offset as u64, ..info() };
            let found = RingLayout::validate(&shifted, len);
            assert_eq!(found.is_ok(), is_inside, "{offset} of {len}");
            assert!(is_inside || found == Err(RingError::OutsideResource));
        }
        // The offset in the resource must be a multiple of 4, not the offset in the ring.
        let odd = RingCreateInfoMESA { offset: 2, ..info() };
        assert_eq!(RingLayout::validate(&odd, 1 << 20), Err(RingError::Misaligned("head")));
        // Sums that would wrap.
        let far = RingCreateInfoMESA { offset: 4096, size: u64::MAX - 4095, ..info() };
        assert_eq!(RingLayout::validate(&far, usize::MAX), Err(RingError::OutsideResource));
    }

    #[test]
    fn buffers_have_a_power_of_two_of_bytes_between_4_and_16_mib() {
        let of = |buffer_size: u64| {
            let info = RingCreateInfoMESA { size: 1 << 30, buffer_size, extra_offset: 1 << 29, ..info() };
            RingLayout::validate(&info, 1 << 30).map(|layout| layout.buffer.len() as u64)
        };
        for power in 0..64 {
            let size = 1 << power;
            let is_size = (2..=24).contains(&power);
            assert_eq!(of(size), if is_size { Ok(size) } else { Err(RingError::BufferSize(size)) });
        }
        for size in [0, 3, 12, 131_071, 131_073, u64::MAX] {
            assert_eq!(of(size), Err(RingError::BufferSize(size)));
        }
    }

    #[test]
    fn copies_wrap_at_the_end_of_the_buffer() {
        let small = RingCreateInfoMESA { buffer_size: 16, ..info() };
        let layout = RingLayout::validate(&small, 1 << 20).expect("valid");
        assert_eq!(layout.copy_ranges(4, 8), (196..204, 192..192));
        assert_eq!(layout.copy_ranges(12, 12), (204..208, 192..200));
        assert_eq!(layout.copy_ranges(u32::MAX - 3, 8), (204..208, 192..196));
        assert_eq!(layout.pending(u32::MAX - 3, 4), Ok(8));
        assert_eq!(layout.pending(0, 17), Err(RingError::Pending(17)));
        assert_eq!(layout.pending(5, 3), Err(RingError::WentBack(2)));
        assert_eq!(layout.pending(1, u32::MAX), Err(RingError::WentBack(2)));
    }

    #[test]
    fn extra_offsets_near_the_end_of_the_address_space_name_no_word() {
        let layout = RingLayout::validate(&info(), 135_168).expect("valid");
        assert_eq!(layout.extra_word(u64::MAX - 7), None);
        assert_eq!(layout.extra_word(u64::MAX - 3), None);
    }

    #[test]
    fn sequence_numbers_wrap() {
        assert!(has_reached(8, 8));
        assert!(has_reached(4, u32::MAX - 3));
        assert!(!has_reached(u32::MAX - 3, 4));
    }
}
