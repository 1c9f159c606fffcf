//! `Reader`, `Writer` and `Arena` at every length of their input, their window and their limit.

use protocol::cursor::{Arena, Reader, Room, Writer};
use protocol::error::{DecodeErrorKind as Kind, Overflow};
use std::sync::{Arc, Mutex};

const BYTES: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

#[test]
fn numbers_are_little_endian_and_a_read_that_fails_moves_nothing() {
    let arena = Arena::new(0);
    for at in [0, 4, 8, 12] {
        for end in at..=BYTES.len() {
            let mut reader = Reader::new(&BYTES[..end], &arena);
            reader.padded_bytes(at as u64).expect("they are there");
            let first = at as u32 + 1;
            let expected = first | (first + 1) << 8 | (first + 2) << 16 | (first + 3) << 24;
            let place = |reader: &Reader<'_>| (reader.offset(), reader.remaining());
            match reader.u32() {
                Ok(found) => assert_eq!((found, place(&reader)), (expected, (at + 4, end - at - 4))),
                Err(error) => {
                    assert_eq!(
                        (error.kind, error.offset, place(&reader)),
                        (Kind::Truncated, at, (at, end - at))
                    );
                    assert!(end < at + 4);
                }
            }
        }
    }
    // A number of 8 bytes may start at any word.
    for end in 4..=12 {
        let mut reader = Reader::new(&BYTES[..end], &arena);
        assert_eq!(reader.u32(), Ok(0x0403_0201));
        let found = reader.u64().map_err(|error| (error.kind, error.offset));
        let expected = if end < 12 { Err((Kind::Truncated, 4)) } else { Ok(0x0c0b_0a09_0807_0605) };
        assert_eq!((found, reader.offset()), (expected, if end < 12 { 4 } else { 12 }));
    }
}

/// A sequence of writes, each of which stands in the window as a whole or not at all; padded bytes are two: them and their padding.
fn write_all(writer: &mut Writer<'_>) {
    writer.u32(0x0403_0201);
    writer.padded_bytes(b"abcde");
    writer.u64(0x0c0b_0a09_0807_0605);
    writer.raw(&[]);
    writer.padded_bytes(b"");
    writer.raw(b"xyz");
}

#[test]
fn a_window_holds_what_a_growing_buffer_does_or_the_start_of_it() {
    let mut writer = Writer::growing();
    write_all(&mut writer);
    assert_eq!(writer.written(), 23);
    let all = writer.into_bytes();
    assert_eq!(all, *b"\x01\x02\x03\x04abcde\0\0\0\x05\x06\x07\x08\x09\x0a\x0b\x0cxyz");
    // Where one write ends and the next one begins.
    let ends = [0, 4, 9, 12, 20, 23];
    for room in 0..30 {
        let mut memory = [0xaa; 32];
        let mut writer = Writer::window(&mut memory[..room]);
        write_all(&mut writer);
        let written = writer.written();
        let kept = ends.into_iter().filter(|end| *end <= room).max().expect("0 is one");
        assert_eq!(written, kept, "{room} bytes of room");
        let expected = if room >= all.len() { Ok(all.len()) } else { Err(Overflow { room }) };
        assert_eq!(writer.finish(), expected, "{room} bytes of room");
        // Padding is zeros, whatever was in the window, and nothing else is touched.
        assert_eq!(memory[..kept], all[..kept]);
        assert!(memory[kept..].iter().all(|byte| *byte == 0xaa), "{room} bytes of room");
    }
}

#[test]
fn the_bytes_of_a_window_are_those_that_were_written() {
    let memory: &'static mut [u8] = Box::leak(Box::new([0xaa; 8]));
    let mut writer = Writer::window(memory);
    writer.u32(7);
    assert_eq!(writer.into_bytes(), [7, 0, 0, 0]);
    let mut growing = Writer::growing();
    growing.u32(7);
    assert_eq!(growing.finish(), Ok(4));
    assert_eq!(Overflow { room: 9 }.to_string(), "output does not fit into 9 bytes");
}

#[test]
fn an_arena_gives_its_limit_and_starts_again() {
    let mut arena = Arena::new(16 << 10);
    let fill = |arena: &Arena| (0u32..).take_while(|at| arena.value([*at; 128]).is_ok()).count();
    let first = fill(&arena);
    assert!(arena.allocated_bytes() <= 16 << 10);
    // Most of it is there for values of 512 bytes.
    assert!((16..=32).contains(&first), "{first} values");
    let error = arena.slice_copy(&[0u64; 64]).expect_err("it is full");
    assert_eq!((error.what, error.kind), ("arena", Kind::ArenaFull));
    arena.reset();
    assert!(fill(&arena) >= first / 2, "after a reset");
    // What takes no bytes needs no room.
    let none = Arena::new(0);
    assert_eq!(none.slice_try_fill(0, |_| Ok::<u8, protocol::error::DecodeError>(1)), Ok(&mut [][..]));
    assert!(none.value(1u8).is_err());
}

#[test]
fn an_arena_keeps_values_apart() {
    let arena = Arena::new(64 << 10);
    let copies: Vec<_> =
        (0..100u32).map(|at| arena.slice_copy(&[at, at + 1]).expect("there is room")).collect();
    let numbers: Vec<_> = (0..100u64).map(|at| arena.value(at).expect("there is room")).collect();
    let filled = arena.slice_fill(5, 7u16).expect("there is room");
    assert!(copies.iter().zip(0..).all(|(copy, at)| **copy == [at, at + 1]));
    assert!(numbers.iter().zip(0..).all(|(number, at)| **number == at));
    assert_eq!(filled, [7; 5]);
}

/// Room that gives no more than so many bytes at once, and writes down what it was asked for.
#[derive(Debug)]
struct Asked {
    most: usize,
    asked: Arc<Mutex<Vec<usize>>>,
}

impl Room for Asked {
    fn more(&mut self, bytes: usize) -> bool {
        self.asked.lock().unwrap().push(bytes);
        bytes <= self.most
    }
}

#[test]
fn an_arena_asks_for_as_much_again_and_then_for_what_it_needs() {
    const OWN: usize = 64 << 10;
    let asks = |most: usize, size: usize| {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let arena = Arena::within(OWN, Asked { most, asked: asked.clone() });
        let is_kept = arena.slice_fill(size, 1u8).is_ok();
        let asked = asked.lock().unwrap().clone();
        (is_kept, asked)
    };
    assert_eq!(asks(usize::MAX, OWN / 2), (true, vec![]), "its own bytes come first");
    let (is_kept, asked) = asks(0, OWN);
    assert!(!is_kept);
    let [again, needed] = asked[..] else { panic!("{asked:?}") };
    assert!(needed > OWN && again >= OWN, "{asked:?}");
    // Less than what there is already is enough, but is only asked for if that much is not there.
    let small = 40 << 10;
    let full = Arc::new(Mutex::new(Vec::new()));
    let arena = Arena::within(OWN, Asked { most: small + (8 << 10), asked: full.clone() });
    assert!(arena.slice_fill(small, 1u8).is_ok() && arena.slice_fill(small, 2u8).is_ok());
    let asked = full.lock().unwrap().clone();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[0] == OWN && (small..OWN).contains(&asked[1]), "{asked:?}");
    // A size that no memory has is not rounded to a small one.
    let (is_kept, asked) = asks(1 << 20, usize::MAX);
    assert!(!is_kept && asked.iter().all(|bytes| *bytes == usize::MAX), "{asked:?}");
}
