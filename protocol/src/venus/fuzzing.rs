//! Entry points for fuzzing the Venus codec and the arithmetic of rings: hostile bytes in, and a panic only where there is a bug.
//!
//! `fuzz/` feeds them new bytes, `tests/fuzz_corpus.rs` the committed ones. This file is no part of the daemon. Each entry point returns the number
//! of commands in its bytes.

use super::generated::{Command, CommandFlagsEXT, Reply, RingCreateInfoMESA};
use super::ring::{RingLayout, has_reached};
use super::stream;
use super::wire::Structure;
use crate::cursor::{Arena, Reader, Writer};
use crate::error::DecodeError;
use std::fmt::Debug;
use std::ops::Range;

/// Room for the values of one command; more than a command of a fuzzer's length needs.
const ARENA_BYTES: usize = 16 << 20;

/// Decodes one command after another as an executor does: each with fresh limits and an arena that is used again.
pub fn fuzz_stream(bytes: &[u8]) -> usize {
    in_turn(bytes, |bytes, arena| {
        let mut reader = Reader::new(bytes, arena);
        stream::next(&mut reader).ok()??;
        Some(reader.offset())
    })
}

/// Checks that a command is the same after it was encoded and decoded again.
pub fn fuzz_roundtrip(bytes: &[u8]) -> usize {
    in_turn(bytes, |bytes, arena| {
        let mut reader = Reader::new(bytes, arena);
        let (header, command) = stream::next(&mut reader).ok()??;
        let written = command_bytes(&command, header.flags);
        assert_eq!(written.len(), reader.offset(), "{command:?}");
        let again = Arena::new(2 * ARENA_BYTES);
        let mut reader = Reader::new(&written, &again);
        let decoded = stream::next(&mut reader).expect("encoded commands decode");
        let (same_header, same) = decoded.expect("there is a command");
        assert_eq!((same_header, reader.remaining()), (header, 0));
        assert_same(&command, &same);
        assert_eq!(command_bytes(&same, header.flags), written);
        Some(written.len())
    })
}

/// Checks the same for replies, which a driver would read.
pub fn fuzz_reply(bytes: &[u8]) -> usize {
    in_turn(bytes, |bytes, arena| {
        let number = i32::from_le_bytes(*bytes.first_chunk()?);
        let (reply, length) = decode_reply(number, bytes, arena).ok()?;
        let written = reply_bytes(&reply);
        assert_eq!(written.len(), length, "{reply:?}");
        let again = Arena::new(2 * ARENA_BYTES);
        let (same, _) = decode_reply(number, &written, &again).expect("encoded replies decode");
        assert_same(&reply, &same);
        assert_eq!(reply_bytes(&same), written);
        Some(length)
    })
}

/// Checks that every range lies in the resource, for any create info and counters that a guest writes. The bytes are the members of
/// `VkRingCreateInfoMESA`, the resource's length, the device's position, the bytes pending, and an extra offset.
pub fn fuzz_ring_layout(bytes: &[u8]) -> usize {
    let arena = Arena::new(4096);
    usize::from(ring_layout(&mut Reader::new(bytes, &arena)).is_ok())
}

fn ring_layout(r: &mut Reader<'_>) -> Result<(), DecodeError> {
    let info = RingCreateInfoMESA::decode_members(r, &[])?;
    let resource_len = r.u64()? as usize;
    let (position, pending, extra_offset) = (r.u32()?, r.u32()?, r.u64()?);
    let tail = position.wrapping_add(pending);
    let Ok(layout) = RingLayout::validate(&info, resource_len) else { return Ok(()) };

    let word = |at: usize| at..at + 4;
    let RingLayout { head, tail: tail_at, status, buffer, extra } = layout.clone();
    let parts = [word(head), word(tail_at), word(status), buffer.clone(), extra.clone()];
    for (at, part) in parts.iter().enumerate() {
        assert!(part.start.is_multiple_of(4) && inside(part, &(0..resource_len)), "{layout:?}");
        assert!(
            parts[..at]
                .iter()
                .all(|other| part.end <= other.start || other.end <= part.start || part.is_empty())
        );
    }
    if let Ok(length) = layout.pending(position, tail) {
        let (first, second) = layout.copy_ranges(position, length);
        assert!(has_reached(tail, position));
        assert_eq!((length, first.len() + second.len()), (pending, pending as usize));
        assert!(inside(&first, &buffer) && inside(&second, &buffer), "{layout:?} {first:?} {second:?}");
    }
    if let Some(at) = layout.extra_word(extra_offset) {
        assert!(at.is_multiple_of(4) && inside(&word(at), &extra));
    }
    Ok(())
}

/// Calls `step` until it finds no valid value, and counts the calls; `step` returns how many bytes it used.
fn in_turn(mut bytes: &[u8], step: impl Fn(&[u8], &Arena) -> Option<usize>) -> usize {
    let mut arena = Arena::new(ARENA_BYTES);
    let mut found = 0;
    while let Some(length) = step(bytes, &arena) {
        assert!(length > 0, "no progress");
        assert!(arena.allocated_bytes() <= ARENA_BYTES);
        bytes = &bytes[length..];
        arena.reset();
        found += 1;
    }
    found
}

fn decode_reply<'a>(
    number: i32,
    bytes: &'a [u8],
    arena: &'a Arena,
) -> Result<(Reply<'a>, usize), DecodeError> {
    let mut reader = Reader::new(bytes, arena);
    let reply = Reply::decode(number, &mut reader)?;
    Ok((reply, reader.offset()))
}

fn command_bytes(command: &Command<'_>, flags: CommandFlagsEXT) -> Vec<u8> {
    let mut writer = Writer::growing();
    command.encode(flags, &mut writer);
    writer.into_bytes()
}

fn reply_bytes(reply: &Reply<'_>) -> Vec<u8> {
    let mut writer = Writer::growing();
    reply.encode(&mut writer);
    writer.into_bytes()
}

/// Panics if two values differ. A value with a NaN differs even from itself; for such a value only the bytes can be compared.
fn assert_same<T: Copy + PartialEq + Debug>(one: &T, other: &T) {
    let itself = *one;
    assert!(one == other || *one != itself, "{one:?} became {other:?}");
}

fn inside(inner: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.start <= inner.end && inner.end <= outer.end
}
