//! The arithmetic of rings against a model that has no wrapping numbers, for every case of small rings and around every wrap.

use protocol::venus::ring::{RingLayout, has_reached};

const BUFFER_AT: usize = 192;

fn layout(size: usize) -> RingLayout {
    let end = BUFFER_AT + size;
    RingLayout { head: 0, tail: 64, status: 128, buffer: BUFFER_AT..end, extra: end..end + 8 }
}

/// Counters around 0, the half of all, and the wrap.
fn counters() -> impl Iterator<Item = u32> {
    [0u32, 1 << 31, 1 << 24]
        .into_iter()
        .flat_map(|middle| (0..80).map(move |step| middle.wrapping_sub(40).wrapping_add(step)))
}

#[test]
fn copies_are_the_bytes_one_by_one() {
    for size in [4usize, 8, 16, 32] {
        let layout = layout(size);
        for position in counters() {
            for pending in 0..=size as u32 + 2 {
                let tail = position.wrapping_add(pending);
                let accepted = layout.pending(position, tail);
                assert_eq!(accepted.is_ok(), pending as usize <= size, "{pending} of {size}");
                let Ok(length) = accepted else { continue };
                let (first, second) = layout.copy_ranges(position, length);
                // Modulo a power of two the counter may wrap or not.
                let one_by_one: Vec<usize> =
                    (0..length as usize).map(|step| BUFFER_AT + (position as usize + step) % size).collect();
                assert_eq!(
                    first.chain(second).collect::<Vec<_>>(),
                    one_by_one,
                    "{length} at {position} of {size}"
                );
            }
        }
    }
}

#[test]
fn tails_that_lie_are_refused_wherever_the_head_is() {
    let layout = layout(16);
    for position in counters() {
        for tail in counters() {
            // The distance without wrapping: a tail behind its head is one that is nearly all counters ahead.
            let ahead = (i64::from(tail) - i64::from(position)).rem_euclid(1 << 32);
            assert_eq!(layout.pending(position, tail).is_ok(), ahead <= 16);
        }
    }
}

#[test]
fn reached_is_what_lies_no_more_than_half_of_all_counters_behind() {
    for head in counters() {
        for seqno in counters() {
            let behind = (i64::from(head) - i64::from(seqno)).rem_euclid(1 << 32);
            assert_eq!(has_reached(head, seqno), behind < 1 << 31, "{head} {seqno}");
            assert!(
                head == seqno || has_reached(head, seqno) != has_reached(seqno, head) || behind == 1 << 31
            );
        }
    }
}

#[test]
fn extra_words_are_those_inside() {
    let layout = layout(16);
    for offset in (0..32).chain([u64::MAX, u64::MAX - 3, u64::MAX - 7, 1 << 32, 1 << 63]) {
        let expected = [(0, 208), (4, 212)].iter().find(|(inside, _)| *inside == offset).map(|(_, at)| *at);
        assert_eq!(layout.extra_word(offset), expected, "{offset}");
    }
}
