//! Every command and every reply: valid bytes decode, encode to the same bytes, and fail when cut short.
//!
//! Valid bytes are found without a second description of the wire: starting from nothing, the decoder's own complaint says
//! what to append or to put right, until it accepts (`Composer`). Random words fill the rest.

use std::collections::BTreeSet;

use protocol::cursor::{Arena, Reader, Writer};
use protocol::error::{DecodeError, DecodeErrorKind as Kind};
use protocol::venus::generated::{ChainStruct, Command, CommandFlagsEXT, Reply};
use protocol::venus::wire::Encode;

/// A decoded value, as far as these tests need one.
trait Wire<'a>: Sized + PartialEq + std::fmt::Debug {
    fn read(number: i32, r: &mut Reader<'a>) -> Result<Self, DecodeError>;
    /// The bytes that `read` reads.
    fn written(&self) -> Vec<u8>;
}

impl<'a> Wire<'a> for Command<'a> {
    fn read(number: i32, r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Self::decode(number, r)
    }

    fn written(&self) -> Vec<u8> {
        let mut writer = Writer::growing();
        self.encode(CommandFlagsEXT::GENERATE_REPLY, &mut writer);
        let mut bytes = writer.into_bytes();
        let parameters = bytes.split_off(8);
        assert_eq!(bytes, [self.number().to_le_bytes(), 1_u32.to_le_bytes()].concat());
        parameters
    }
}

impl<'a> Wire<'a> for Reply<'a> {
    fn read(number: i32, r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Self::decode(number, r)
    }

    fn written(&self) -> Vec<u8> {
        let mut writer = Writer::growing();
        self.encode(&mut writer);
        writer.into_bytes()
    }
}

/// Deterministic numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Mostly small, since most words turn out to be counts; never the pattern of a NaN.
    fn word(&mut self) -> u32 {
        match self.below(8) {
            0..=2 => 0,
            3..=4 => 1,
            5 => self.below(5) as u32,
            6 => self.below(5) as u32 * 4,
            _ => self.next() as u32 & 0x3fff_ffff,
        }
    }
}

type Decoder = fn(i32, &mut Reader<'_>) -> Result<(), DecodeError>;

/// Builds bytes that decode.
struct Composer {
    random: Random,
    bytes: Vec<u8>,
    /// sTypes that no accepted bytes contained so far; preferred in chains.
    unseen: BTreeSet<i32>,
    placed: BTreeSet<i32>,
}

impl Composer {
    fn new(seed: u64) -> Self {
        let unseen = ChainStruct::S_TYPES.iter().copied().collect();
        Self { random: Random(seed), bytes: Vec::new(), unseen, placed: BTreeSet::new() }
    }

    /// Bytes that decode as this command or reply.
    fn compose(&mut self, number: i32, decode: Decoder) -> Vec<u8> {
        let found = (0..10_000).find_map(|_| self.grow(number, decode, &[]));
        found.unwrap_or_else(|| panic!("no valid bytes found for command {number}"))
    }

    /// Bytes that carry a chain struct that was not seen yet, when one fits somewhere into these.
    fn graft(&mut self, number: i32, decode: Decoder, bytes: &[u8]) -> Option<Vec<u8>> {
        let arena = Arena::new(64 << 20);
        for at in (0..bytes.len().saturating_sub(7)).step_by(4).filter(|at| bytes[*at..*at + 8] == [0; 8]) {
            // The rest of the bytes only serves the check that counts fit.
            let probe = [&bytes[..at], &1_u64.to_le_bytes(), &[0xff; 4], bytes].concat();
            let Err(error) = decode(number, &mut Reader::new(&probe, &arena)) else { continue };
            let is_link = error.kind == Kind::ChainStructure(-1) && error.offset == at + 12;
            let accepted = ChainStruct::accepted_by(error.what);
            if is_link && accepted.iter().any(|s_type| self.unseen.contains(s_type)) {
                return (0..100).find_map(|_| self.grow(number, decode, &probe[..at + 12]));
            }
        }
        None
    }

    /// One attempt to complete these bytes; gives up when the random numbers ask for too much.
    fn grow(&mut self, number: i32, decode: Decoder, start: &[u8]) -> Option<Vec<u8>> {
        self.bytes = start.to_vec();
        self.placed.clear();
        if !self.complete(number, decode) {
            return None;
        }
        self.unseen = self.unseen.difference(&self.placed).copied().collect();
        Some(self.bytes.clone())
    }

    fn complete(&mut self, number: i32, decode: Decoder) -> bool {
        let mut arena = Arena::new(4 << 20);
        while self.bytes.len() < 8192 {
            arena.reset();
            let mut reader = Reader::new(&self.bytes, &arena);
            let result = decode(number, &mut reader);
            let offset = reader.offset();
            match result {
                Ok(()) => {
                    self.bytes.truncate(offset);
                    return true;
                }
                Err(error) if !self.repair(number, error) => return false,
                Err(_) => {}
            }
        }
        false
    }

    /// Puts right what the decoder complained about.
    fn repair(&mut self, number: i32, DecodeError { what, offset, kind }: DecodeError) -> bool {
        match kind {
            Kind::Truncated => {
                let word = self.random.word();
                self.bytes.extend(word.to_le_bytes());
            }
            Kind::Count { expected, .. } => self.set_u64(offset - 8, expected),
            Kind::Null => self.set_u64(offset - 8, 1),
            Kind::NotNull => self.set_u64(offset - 8, 0),
            Kind::Presence(_) => {
                let more = ChainStruct::accepted_by(what).iter().any(|s| self.unseen.contains(s));
                let presence = if more { 1 } else { self.random.below(2) };
                self.set_u64(offset - 8, presence);
            }
            Kind::StructureType { expected, .. } => self.set_u32(offset - 4, expected as u32),
            Kind::ChainStructure(_) => self.choose_link(what, offset),
            Kind::UnionTag(_) => {
                let tag = self.random.below(3) as u32;
                self.set_u32(offset - 4, tag);
            }
            Kind::String { size: 0 } => self.set_u64(offset - 8, 1),
            Kind::String { size } => {
                let start = offset - (size as usize).next_multiple_of(4);
                let end = start + size as usize - 1;
                self.bytes[start..end].fill(b'x');
                self.bytes[end] = 0;
            }
            Kind::Command(_) => self.set_u32(offset - 4, number as u32),
            Kind::Length(_) | Kind::OutBudget | Kind::ArenaFull | Kind::ChainLength => return false,
        }
        true
    }

    /// Replaces a wrong sType by one that the owner accepts, or ends the chain there.
    fn choose_link(&mut self, owner: &str, offset: usize) {
        let accepted = ChainStruct::accepted_by(owner);
        let fresh = accepted.iter().find(|s| self.unseen.contains(s) && !self.placed.contains(s));
        let random = self.random.below(accepted.len().max(1) as u64 * 2) as usize;
        match fresh.or_else(|| accepted.get(random)) {
            Some(s_type) if self.placed.len() < 100 => {
                self.placed.insert(*s_type);
                self.set_u32(offset - 4, *s_type as u32);
            }
            _ => {
                self.set_u64(offset - 12, 0);
                self.bytes.truncate(offset - 4);
            }
        }
    }

    fn set_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn set_u64(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

/// Decodes, encodes, decodes again: same value, same bytes.
macro_rules! round_trip {
    ($type:ident, $number:expr, $bytes:expr) => {{
        let (first_arena, second_arena) = (Arena::new(16 << 20), Arena::new(16 << 20));
        let first =
            $type::read($number, &mut Reader::new($bytes, &first_arena)).expect("composed bytes decode");
        let written = first.written();
        assert_eq!(written.len(), $bytes.len(), "{first:?}");
        let mut reader = Reader::new(&written, &second_arena);
        let second = $type::read($number, &mut reader).expect("encoded bytes decode");
        assert_eq!(reader.remaining(), 0);
        assert_eq!(first, second);
        assert_eq!(second.written(), written);
        written
    }};
}

fn decode_command(number: i32, r: &mut Reader<'_>) -> Result<(), DecodeError> {
    Command::decode(number, r).map(drop)
}

fn decode_reply(number: i32, r: &mut Reader<'_>) -> Result<(), DecodeError> {
    Reply::decode(number, r).map(drop)
}

/// Every proper prefix is an error.
fn refuse_prefixes(number: i32, bytes: &[u8], decode: Decoder) {
    let mut arena = Arena::new(16 << 20);
    for end in 0..bytes.len() {
        arena.reset();
        let result = decode(number, &mut Reader::new(&bytes[..end], &arena));
        assert_eq!(result.map_err(|e| e.kind), Err(Kind::Truncated), "command {number} cut at {end}");
    }
}

#[test]
fn every_command_round_trips() {
    let mut composer = Composer::new(1);
    for round in 0..6 {
        for &number in Command::NUMBERS {
            let bytes = composer.compose(number, decode_command);
            let written = round_trip!(Command, number, &bytes);
            if round < 2 && written.len() < 4096 {
                refuse_prefixes(number, &written, decode_command);
            }
        }
    }
    // Most chains end early, so rare structs are put where they fit.
    for &number in Command::NUMBERS.iter().cycle().take(100 * Command::NUMBERS.len()) {
        let mut bytes = composer.compose(number, decode_command);
        while let Some(grafted) = composer.graft(number, decode_command, &bytes) {
            bytes = round_trip!(Command, number, &grafted);
        }
        if composer.unseen.is_empty() {
            return;
        }
    }
    panic!("chain structs that no command carried: {:?}", composer.unseen);
}

#[test]
fn every_reply_round_trips() {
    let mut composer = Composer::new(2);
    for round in 0..6 {
        for &number in Command::NUMBERS {
            let bytes = composer.compose(number, decode_reply);
            let written = round_trip!(Reply, number, &bytes);
            if round < 2 && written.len() < 4096 {
                refuse_prefixes(number, &written, decode_reply);
            }
        }
    }
}

#[test]
fn damaged_commands_never_panic() {
    let mut composer = Composer::new(3);
    let mut arena = Arena::new(4 << 20);
    for &number in Command::NUMBERS {
        let bytes = composer.compose(number, decode_command);
        for _ in 0..200 {
            let mut damaged = bytes.clone();
            for _ in 0..=composer.random.below(3) {
                let at = composer.random.below(damaged.len().max(1) as u64) as usize;
                let byte = composer.random.next() as u8;
                if let Some(place) = damaged.get_mut(at) {
                    *place = byte;
                }
            }
            arena.reset();
            let _ = Command::decode(number, &mut Reader::new(&damaged, &arena));
        }
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Random(4);
    let mut arena = Arena::new(4 << 20);
    for round in 0..200 {
        let bytes: Vec<u8> = (0..256)
            .flat_map(|_| if round % 2 == 0 { random.word() } else { random.next() as u32 }.to_le_bytes())
            .collect();
        for &number in Command::NUMBERS {
            arena.reset();
            let _ = Command::decode(number, &mut Reader::new(&bytes, &arena));
            let _ = Reply::decode(number, &mut Reader::new(&bytes, &arena));
        }
    }
}

#[test]
fn numbers_keep_their_bits() {
    let mut writer = Writer::growing();
    (-2.5_f32).encode(&mut writer);
    (-7_i32).encode(&mut writer);
    0xabcd_u16.encode(&mut writer);
    (-1_i64).encode(&mut writer);
    1e300_f64.encode(&mut writer);
    let bytes = writer.into_bytes();
    let arena = Arena::new(1024);
    let mut reader = Reader::new(&bytes, &arena);
    assert_eq!(reader.value::<f32>(""), Ok(-2.5));
    assert_eq!(reader.value::<i32>(""), Ok(-7));
    assert_eq!(reader.value::<u16>(""), Ok(0xabcd));
    assert_eq!(reader.value::<i64>(""), Ok(-1));
    assert_eq!(reader.value::<f64>(""), Ok(1e300));
}
