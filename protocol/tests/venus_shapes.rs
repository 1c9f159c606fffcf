//! The shapes of members, each at its edges: input that ends anywhere, counts, padding, text, budgets, arenas, chains, framing.

use protocol::cursor::{Arena, Limits, Reader, Room, Writer};
use protocol::error::{DecodeError, DecodeErrorKind as Kind, Overflow};
use protocol::venus::generated::*;
use protocol::venus::stream::{self, Header, Recorded};
use protocol::venus::wire::{Null, Structure};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const REFUSED: Null = Null::Refused;
const ALLOWED: Null = Null::Allowed;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn written(write: impl Fn(&mut Writer<'static>)) -> Vec<u8> {
    let mut writer = Writer::growing();
    write(&mut writer);
    writer.into_bytes()
}

/// The error that a read of these bytes ends with.
fn error<T: std::fmt::Debug>(
    wire: &[u8],
    read: impl Fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> (&'static str, Kind) {
    let arena = Arena::new(1 << 20);
    let error = read(&mut Reader::new(wire, &arena)).expect_err("malformed");
    (error.what, error.kind)
}

#[test]
fn input_that_ends_inside_a_shape_is_truncated_wherever_it_ends() {
    type Read = fn(&mut Reader<'_>) -> Result<(), DecodeError>;
    let shapes: [(Vec<u8>, Read); 10] = [
        (written(|w| w.value(&7u64)), |r| r.value::<u64>("m").map(drop)),
        (written(|w| w.pointer(Some(&7u32))), |r| r.pointer::<u32>("m", REFUSED).map(drop)),
        (written(|w| w.array(Some(&[1u64, 2]))), |r| r.array::<u64>("m", 2, REFUSED).map(drop)),
        (written(|w| w.array(Some(&[1u32, 2, 3]))), |r| r.sized_array::<u32>("m").map(drop)),
        (written(|w| w.bytes(Some(b"12345"))), |r| r.bytes("m", 5, REFUSED).map(drop)),
        (written(|w| w.bytes(Some(b"123456"))), |r| r.sized_bytes("m").map(drop)),
        (written(|w| w.string(Some(c"text"))), |r| r.string("m", REFUSED).map(drop)),
        (written(|w| w.strings(Some(&[c"a", c"longer"]))), |r| r.strings("m", 2, REFUSED).map(drop)),
        (written(|w| w.fixed(&[1u32, 2])), |r| r.fixed::<u32, 2>("m").map(drop)),
        (written(|w| w.fixed_bytes(b"0123456789")), |r| r.fixed_bytes::<10>("m").map(drop)),
    ];
    for (at, (wire, read)) in shapes.iter().enumerate() {
        let arena = Arena::new(1 << 20);
        let mut reader = Reader::new(wire, &arena);
        assert_eq!((read(&mut reader), reader.remaining()), (Ok(()), 0), "shape {at}");
        for end in 0..wire.len() {
            assert_eq!(error(&wire[..end], read), ("m", Kind::Truncated), "shape {at}, {end} bytes");
        }
    }
}

#[test]
fn bytes_are_padded_to_words_and_the_padding_is_not_looked_at() {
    let arena = Arena::new(1 << 10);
    for count in 0..=9 {
        let bytes = vec![0xaa; count];
        let padded = written(|w| w.padded_bytes(&bytes));
        assert_eq!(padded.len(), count.next_multiple_of(4));
        assert!(padded[count..].iter().all(|byte| *byte == 0));
        // Another driver's padding may be anything.
        let wire = vec![0xaa; 12];
        let mut reader = Reader::new(&wire, &arena);
        assert_eq!(reader.padded_bytes(count as u64), Ok(bytes.as_slice()));
        assert_eq!(reader.offset(), padded.len());
    }
    // No length wraps when it is rounded up, and a read that failed has moved nothing.
    for count in [13, u64::MAX - 2, u64::MAX] {
        let mut reader = Reader::new(&[0; 12], &arena);
        let error = reader.padded_bytes(count).expect_err("too long");
        assert_eq!((error.kind, error.offset, reader.remaining()), (Kind::Truncated, 0, 12));
    }
}

#[test]
fn a_window_takes_nothing_more_after_what_did_not_fit() {
    let mut memory = [0xaa; 8];
    let mut writer = Writer::window(&mut memory);
    writer.u32(1);
    writer.u64(2);
    // This one would fit, but would be read as the start of what is missing.
    writer.u32(3);
    assert_eq!(writer.written(), 4);
    assert_eq!(writer.finish(), Err(Overflow { room: 8 }));
    assert_eq!(memory, [1, 0, 0, 0, 0xaa, 0xaa, 0xaa, 0xaa]);
    let mut writer = Writer::window(&mut memory);
    writer.u64(4);
    assert_eq!(writer.finish(), Ok(8));
}

#[test]
fn narrow_numbers_take_a_word_each_and_floats_keep_their_bits() {
    assert_eq!(written(|w| w.array(Some(&[1u8, 2]))), words(&[2, 0, 1, 2]));
    assert_eq!(written(|w| w.bytes(Some(&[1, 2]))), words(&[2, 0, 0x201]));
    let arena = Arena::new(1 << 10);
    let wire = words(&[0x1234_5678, 0x1234_5678, u32::MAX]);
    let mut reader = Reader::new(&wire, &arena);
    assert_eq!(reader.value::<u8>(""), Ok(0x78));
    assert_eq!(reader.value::<u16>(""), Ok(0x5678));
    assert_eq!(reader.value::<i32>(""), Ok(-1));
    // NaNs that signal, with numbers in them.
    let wire = words(&[0x7f80_0001, 0x0000_0001, 0x7ff0_0000]);
    let mut reader = Reader::new(&wire, &arena);
    let (single, double): (f32, f64) = (reader.value("").unwrap(), reader.value("").unwrap());
    let again = written(|w| {
        w.value(&single);
        w.value(&double);
    });
    assert_eq!(again, wire);
}

#[test]
fn a_count_is_what_the_length_member_said_or_null_where_that_is_allowed() {
    let read =
        |len, null| move |r: &mut Reader<'_>| r.array::<u32>("m", len, null).map(|all| all.map(<[_]>::len));
    let arena = Arena::new(1 << 10);
    let found = |wire: &[u32], len, null| read(len, null)(&mut Reader::new(&words(wire), &arena));
    assert_eq!(found(&[0, 0], 0, REFUSED), Ok(None));
    assert_eq!(found(&[0, 0], 2, ALLOWED), Ok(None));
    assert_eq!(found(&[2, 0, 5, 6], 2, ALLOWED), Ok(Some(2)));
    let wrong = [(0, 2, REFUSED), (1, 2, ALLOWED), (3, 2, ALLOWED), (3, 2, REFUSED), (1, 0, ALLOWED)];
    for (count, len, null) in wrong {
        let kind = Kind::Count { found: count, expected: len };
        let wire = words(&[count as u32, 0, 5, 6, 7]);
        assert_eq!(error(&wire, read(len, null)), ("m", kind));
    }
    // The upper half counts.
    let kind = Kind::Count { found: 2 | 1 << 32, expected: 2 };
    assert_eq!(error(&words(&[2, 1, 5, 6]), read(2, ALLOWED)), ("m", kind));
    let kind = Kind::Count { found: 3, expected: 2 };
    assert_eq!(error(&words(&[3, 0, 5, 6, 7]), |r| r.fixed::<u32, 2>("m")), ("m", kind));
    assert_eq!(error(&words(&[3, 0, 5, 6, 7]), |r| r.fixed_bytes::<2>("m")), ("m", kind));
}

#[test]
fn presence_is_0_or_1_in_all_of_its_8_bytes() {
    for (wire, presence) in [([2, 0], 2), ([1, 1], 1 | 1 << 32), ([0, 1], 1 << 32), ([!0, !0], u64::MAX)] {
        for null in [REFUSED, ALLOWED] {
            let read = |r: &mut Reader<'_>| r.pointer::<u32>("m", null).map(drop);
            assert_eq!(error(&words(&wire), read), ("m", Kind::Presence(presence)));
            let read = |r: &mut Reader<'_>| r.out_pointer::<u32>("m", null).map(drop);
            assert_eq!(error(&words(&wire), read), ("m", Kind::Presence(presence)));
        }
        assert_eq!(error(&words(&wire), |r| r.null_pointer("m")), ("m", Kind::NotNull));
    }
    assert_eq!(error(&[0; 8], |r| r.pointer::<u32>("m", REFUSED).map(drop)), ("m", Kind::Null));
    assert_eq!(error(&[0; 8], |r| r.string("m", REFUSED).map(drop)), ("m", Kind::Null));
}

#[test]
fn the_terminator_of_text_is_its_last_byte_and_not_its_padding() {
    let text = |bytes: &[u8]| written(|w| w.bytes(Some(bytes)));
    for wrong in [&b"abc"[..], b"a\0c\0", b"\0\0", b"abcd"] {
        let kind = Kind::String { size: wrong.len() as u64 };
        assert_eq!(error(&text(wrong), |r| r.string("m", ALLOWED).map(drop)), ("m", kind));
        let array = [words(&[1, 0]), text(wrong)].concat();
        assert_eq!(error(&array, |r| r.strings("m", 1, REFUSED).map(drop)), ("m", kind));
    }
    let arena = Arena::new(1 << 10);
    assert_eq!(Reader::new(&text(b"\0"), &arena).string("m", REFUSED), Ok(Some(c"")));
    // Text in an array has at least its terminator.
    let empty = Kind::String { size: 0 };
    assert_eq!(error(&words(&[1, 0, 0, 0, 0]), |r| r.strings("m", 1, REFUSED).map(drop)), ("m", empty));
}

#[test]
fn results_of_one_command_share_a_budget() {
    let (arena, wire) = (Arena::new(1 << 20), words(&[2, 0, 3, 0, 2, 0, 1, 0]));
    let limits = Limits { out_budget: 16, ..Limits::default() };
    let mut reader = Reader::with_limits(&wire, &arena, limits);
    assert_eq!(reader.out_array::<u32>("m", 2, REFUSED), Ok(Some(&[0, 0][..])));
    // What is refused takes nothing.
    let error = reader.out_array::<u32>("m", 3, REFUSED).expect_err("12 bytes of 8");
    assert_eq!((error.kind, error.offset), (Kind::OutBudget, 16));
    assert_eq!(reader.out_array::<u32>("m", 2, REFUSED), Ok(Some(&[0, 0][..])));
    let error = reader.out_array::<u8>("m", 1, REFUSED).expect_err("nothing is left");
    assert_eq!(error.kind, Kind::OutBudget);
    // 2^61 + 1 numbers of 8 bytes would be 8 bytes if products wrapped.
    let many = (1 << 61) + 1;
    let wire = written(|w| w.u64(many));
    let error = Reader::new(&wire, &arena).out_array::<u64>("m", many, REFUSED).expect_err("too many");
    assert_eq!(error.kind, Kind::OutBudget);
}

#[test]
fn lengths_divide_exactly() {
    let arena = Arena::new(0);
    let reader = Reader::new(&[], &arena);
    assert_eq!(reader.div_exact("m", 8, 4), Ok(2));
    for (len, divisor) in [(6, 4), (u64::MAX, 4), (8, 0)] {
        let error = reader.div_exact("m", len, divisor).expect_err("a remainder");
        assert_eq!((error.what, error.kind), ("m", Kind::Length(len)));
    }
}

/// The bytes that arenas share.
#[derive(Debug)]
struct Shared(Arc<AtomicUsize>);

impl Room for Shared {
    fn more(&mut self, bytes: usize) -> bool {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(bytes)).is_ok()
    }
}

#[test]
fn arenas_take_what_they_share_and_not_more() {
    const OWN: usize = 8 << 10;
    const ROOM: usize = 256 << 10;
    let left = Arc::new(AtomicUsize::new(ROOM));
    let arenas = [0, 1].map(|_| Arena::within(OWN, Shared(left.clone())));
    let mut kept = 0;
    while arenas[0].slice_copy(&[1u8; 1000]).is_ok() {
        kept += 1000;
        assert!(arenas[0].allocated_bytes() <= OWN + ROOM - left.load(Ordering::SeqCst));
    }
    assert!(kept > OWN, "{kept} bytes are in an arena that may have more");
    // The other has its own, and nothing of what the first one took.
    assert!(arenas[1].slice_copy(&[1u8; 1000]).is_ok());
    let error = arenas[1].slice_fill(ROOM, 1u8).expect_err("more than both");
    assert_eq!(error.kind, Kind::ArenaFull);
    assert!(arenas.iter().map(Arena::allocated_bytes).sum::<usize>() <= 2 * OWN + ROOM);
    // A size that is no size of memory.
    let error = arenas[1].slice_fill(usize::MAX, 1u64).expect_err("no such memory");
    assert_eq!(error.kind, Kind::ArenaFull);
}

#[test]
fn elements_are_made_in_order_and_the_first_error_ends_it() {
    let arena = Arena::new(1 << 16);
    for len in 0..4 {
        let mut made = Vec::new();
        let filled = arena.slice_try_fill(len, |at| {
            made.push(at);
            Ok::<_, DecodeError>(at * 2)
        });
        assert_eq!(filled.unwrap(), (0..len).map(|at| at * 2).collect::<Vec<_>>());
        assert_eq!(made, (0..len).collect::<Vec<_>>());
    }
    let wrong = DecodeError { what: "element", offset: 5, kind: Kind::Null };
    for first in 0..3 {
        let filled = arena.slice_try_fill(3, |at| {
            assert!(at <= first, "element {at} after the error at {first}");
            if at == first { Err(wrong) } else { Ok(at) }
        });
        assert_eq!(filled, Err(wrong));
    }
}

/// A fence's information with so many links, whose members count up in the order of the wire.
fn fence(links: u32) -> Vec<u8> {
    let heads = [1, 0, ExportFenceCreateInfo::S_TYPE as u32].repeat(links as usize);
    let members: Vec<u32> = (1..=links).collect();
    words(&[&[8][..], &heads, &[0, 0], &members, &[77]].concat())
}

#[test]
fn the_members_of_a_chain_come_last_link_first_and_then_the_owners() {
    let (arena, wire) = (Arena::new(1 << 16), fence(3));
    let mut reader = Reader::new(&wire, &arena);
    let info: FenceCreateInfo<'_> = reader.value("m").unwrap();
    let members = info.p_next.iter().map(|link| match link {
        ChainStruct::ExportFenceCreateInfo(info) => info.handle_types.0,
        other => panic!("{other:?}"),
    });
    assert_eq!(members.collect::<Vec<_>>(), [3, 2, 1]);
    assert_eq!((info.flags.0, reader.remaining()), (77, 0));
    assert_eq!(written(|w| w.value(&info)), wire);
    for end in 0..wire.len() {
        let (_, kind) = error(&wire[..end], |r| r.value::<FenceCreateInfo<'_>>("m").map(drop));
        assert_eq!(kind, Kind::Truncated, "{end} bytes");
    }
}

#[test]
fn chains_are_as_long_as_the_limit_and_never_longer_than_128() {
    for (max_chain, longest) in [(0, 0), (1, 1), (5, 5), (128, 128), (usize::MAX, 128)] {
        let limits = Limits { max_chain, ..Limits::default() };
        let decode = |links| {
            let (arena, wire) = (Arena::new(1 << 20), fence(links));
            let mut reader = Reader::with_limits(&wire, &arena, limits);
            reader.value::<FenceCreateInfo<'_>>("m").map(|info| info.p_next.len()).map_err(|error| error.kind)
        };
        assert_eq!(decode(longest), Ok(longest as usize));
        assert_eq!(decode(longest + 1), Err(Kind::ChainLength));
    }
}

#[test]
fn a_stream_ends_between_commands_only() {
    let arena = Arena::new(1 << 10);
    assert_eq!(stream::next(&mut Reader::new(&[], &arena)), Ok(None));
    // vkDeviceWaitIdle of device 3, with a flag that is not known.
    let wire = words(&[20, 0x8000_0001, 3, 0]);
    let mut reader = Reader::new(&wire, &arena);
    let (header, _) = stream::next(&mut reader).unwrap().unwrap();
    assert_eq!((header.number, header.wants_reply(), reader.remaining()), (20, true, 0));
    assert_eq!(stream::next(&mut reader), Ok(None));
    for end in 1..wire.len() {
        let what = ["command number", "command flags"].get(end / 4);
        let read = |r: &mut Reader<'_>| stream::next(r).map(drop);
        let (found, kind) = error(&wire[..end], read);
        assert_eq!(kind, Kind::Truncated, "{end} bytes");
        assert!(what.is_none_or(|what| *what == found), "{found} at {end} bytes");
    }
}

#[test]
fn a_peek_sees_what_the_decoder_reads() {
    let wire = words(&[u32::MAX, 0x8000_0001, 5, 6, 9]);
    let arena = Arena::new(1 << 10);
    let mut reader = Reader::new(&wire, &arena);
    let (header, command_buffer) = (Header::decode(&mut reader).unwrap(), reader.value("").unwrap());
    assert_eq!(Recorded::peek(&wire), Some(Recorded { header, command_buffer }));
    assert!((0..16).all(|end| Recorded::peek(&wire[..end]).is_none()));
}
