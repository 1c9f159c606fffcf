//! The reasons for which a shader module is refused: an error tells which instruction breaks which rule. An error names numbers and ids, never text
//! from the guest.

use super::grammar::{self, Kind, Operand};
use crate::spirv::generated::tables::CAPABILITIES;
use std::fmt;
use thiserror::Error;

/// A module that no driver gets to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("word {at}{instruction}: {kind}")]
pub struct Error {
    /// Index of the first word of the instruction, 0 for the module as a whole.
    pub at: usize,
    /// The instruction.
    pub instruction: Culprit,
    /// The rule that is broken.
    pub kind: ErrorKind,
}

/// The instruction that an error is about; none for the module as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Culprit {
    /// The opcode of the instruction; 0 for none.
    pub opcode: u16,
    /// The id that it defines; 0 for none.
    pub result: u32,
}

impl Culprit {
    fn of(words: &[u32], at: usize) -> Self {
        let Some(first) = words.get(at).filter(|_| at != 0) else { return Self::default() };
        let opcode = *first as u16;
        let operands = grammar::instruction(opcode).map_or(&[][..], |grammar| grammar.operands);
        let result = operands.iter().take(2).position(|kind| matches!(kind, Operand::One(Kind::Result)));
        let result = result.and_then(|index| words.get(at + 1 + index)).copied().unwrap_or(0);
        Self { opcode, result }
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (grammar::instruction(self.opcode), self) {
            (_, Self { opcode: 0, .. }) => Ok(()),
            (None, Self { opcode, .. }) => write!(f, ", instruction {opcode}"),
            (Some(grammar), Self { result: 0, .. }) => write!(f, ", {}", grammar.name),
            (Some(grammar), Self { result, .. }) => write!(f, ", {} %{result}", grammar.name),
        }
    }
}

/// A capability, which is shown by its name, or by its number if no served part of a device enables it.
struct Named(u32);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match grammar::row(CAPABILITIES, self.0) {
            Some(capability) => f.write_str(capability.name),
            None => write!(f, "{}", self.0),
        }
    }
}

/// The rule that a module breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ErrorKind {
    /// The module is shorter than a header, or the header has another magic number, a schema, or a version that was not offered.
    #[error("no header, or one of a version that is not offered")]
    Header,
    /// A count that exceeds its limit.
    #[error("more {0} than the limit")]
    Limit(&'static str),
    /// An instruction that ends outside the module or has no words, or operands that do not fill it.
    #[error("operands and length disagree")]
    Length,
    /// An instruction, enumerant or extended instruction that does not exist or is not served.
    #[error("unknown {0}")]
    Unknown(&'static str),
    /// A capability or extension that the device does not offer.
    #[error("{0} that is not offered")]
    NotOffered(&'static str),
    /// A capability, by its number, that the device was not created with.
    #[error("capability {}, whose feature or extension the program has not enabled on its device", Named(*.0))]
    Capability(u32),
    /// A capability, by its number, that the module would have to declare.
    #[error("capability {} is not declared", Named(*.0))]
    Undeclared(u32),
    /// Text without end.
    #[error("text without end")]
    Text,
    /// Something that an entry point must have.
    #[error("no {0}")]
    Missing(&'static str),
    /// An id that is 0 or not below the bound.
    #[error("id %{0} is 0 or not below the bound")]
    IdRange(u32),
    /// An id that is defined twice.
    #[error("id %{0} is defined twice")]
    IdTwice(u32),
    /// An id that is not defined, or not visible at its use.
    #[error("id %{0} is not defined here")]
    IdMissing(u32),
    /// An id of the wrong kind.
    #[error("id %{0} is no {1}")]
    IdKind(u32, &'static str),
    /// An instruction where none of its kind may be.
    #[error("misplaced {0}")]
    Order(&'static str),
    /// A value that is outside its range.
    #[error("{0} out of range")]
    Range(&'static str),
    /// Types that do not fit together.
    #[error("types of {0} differ")]
    Mismatch(&'static str),
    /// Two entry points of one execution model with the same name.
    #[error("second entry point of this name and execution model")]
    EntryPointTwice,
    /// A function that calls itself, directly or not.
    #[error("recursion")]
    Recursion,
}

impl ErrorKind {
    /// Returns whether the module is valid, but for another device.
    pub fn is_for_another_device(self) -> bool {
        matches!(self, Self::NotOffered(_) | Self::Capability(_))
    }

    /// Returns an error of this kind at the word of index `at`.
    pub fn at(self, at: usize) -> Error {
        Error { at, instruction: Culprit::default(), kind: self }
    }
}

impl Error {
    /// Returns the same error with the instruction that is at its place in the module.
    #[cold]
    #[must_use]
    pub fn within(self, words: &[u32]) -> Self {
        Self { instruction: Culprit::of(words, self.at), ..self }
    }
}
