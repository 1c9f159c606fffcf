//! A module as words: its header, and one instruction after the other.

use super::error::{Error, ErrorKind};

/// Words of the header.
pub(crate) const HEADER: usize = 5;
/// The first word of every module in this machine's byte order.
const MAGIC: u32 = 0x0723_0203;

/// The fields of the header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    /// Ids are below this.
    pub bound: u32,
}

impl Header {
    /// Reads the header of a module for a device that takes versions up to `newest`.
    pub(crate) fn read(words: &[u32], newest: u32) -> Result<Self, Error> {
        let &[magic, version, _generator, bound, schema, ..] = words else {
            return Err(ErrorKind::Header.at(0));
        };
        let well_formed = version & 0xff00_00ff == 0 && (0x1_0000..=newest).contains(&version);
        if magic != MAGIC || schema != 0 || !well_formed || bound == 0 {
            return Err(ErrorKind::Header.at(0));
        }
        Ok(Self { bound })
    }
}

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction<'w> {
    /// Index of its first word in the module.
    pub at: usize,
    /// The opcode.
    pub opcode: u16,
    /// The words of the instruction behind the first.
    pub operands: &'w [u32],
}

impl<'w> Instruction<'w> {
    /// The instruction whose first word is at `at`, which lies in the module.
    pub(crate) fn read(words: &'w [u32], at: usize) -> Result<Self, Error> {
        let first = *words.get(at).ok_or(ErrorKind::Length.at(at))?;
        let end = at + (first >> 16) as usize;
        let operands = words.get(at + 1..end).ok_or(ErrorKind::Length.at(at))?;
        Ok(Self { at, opcode: first as u16, operands })
    }

    /// The operand of this index; an error if there are fewer.
    pub(crate) fn word(&self, index: usize) -> Result<u32, Error> {
        self.operands.get(index).copied().ok_or(ErrorKind::Length.at(self.at))
    }

    /// Returns the position of the next instruction.
    pub(crate) fn end(&self) -> usize {
        self.at + 1 + self.operands.len()
    }

    /// An error at this instruction.
    pub(crate) fn wrong(&self, kind: ErrorKind) -> Error {
        kind.at(self.at)
    }
}

/// The bytes of text at the start of some words, without its terminator, and the words it takes.
pub(crate) fn text(words: &[u32]) -> Option<(Vec<u8>, usize)> {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    let taken = bytes.len() / 4 + 1;
    (taken <= words.len()).then_some((bytes, taken))
}

/// The words that text takes.
pub(crate) fn text_length(words: &[u32]) -> Option<usize> {
    let ends = |word: &u32| word.to_le_bytes().contains(&0);
    words.iter().position(ends).map(|last| last + 1)
}
