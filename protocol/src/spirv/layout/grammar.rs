//! The shape of SPIR-V instructions: what kinds of operands there are. Which instruction has which is in `generated`, as tables.

use crate::spirv::generated::tables::INSTRUCTIONS;

/// An operand of an instruction, or of an enumerant.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// Exactly one operand.
    One(Kind),
    /// An operand that may be absent.
    Optional(Kind),
    /// Operands up to the end of the instruction.
    Any(Kind),
}

/// The kinds of operand.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// The id of the result's type.
    ResultType,
    /// The id that the instruction defines.
    Result,
    /// An id that it uses.
    Id,
    /// A word.
    Literal,
    /// Text, padded to words.
    Text,
    /// A number as wide as the type of the result.
    Number,
    /// An instruction without result and type, its operands behind it.
    Opcode,
    /// A number as wide as the selector, and an id (`OpSwitch`).
    NumberAndId,
    /// An id and a word.
    IdAndLiteral,
    /// Two ids.
    IdAndId,
    /// One of these values.
    Value(&'static [Enumerant]),
    /// Some of these bits, whose operands follow in this order.
    Mask(&'static [Enumerant]),
}

/// A value or bit, and the operands that follow it.
pub type Enumerant = (u32, &'static [Operand]);

/// The grammar of one instruction.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// The name of the instruction in the specification.
    pub name: &'static str,
    /// Operands in order.
    pub operands: &'static [Operand],
    /// The capabilities of which it needs one, if there are any.
    pub capabilities: &'static [u32],
}

impl Instruction {
    /// One row of the table.
    pub const fn new(name: &'static str, operands: &'static [Operand], capabilities: &'static [u32]) -> Self {
        Self { name, operands, capabilities }
    }
}

/// The conditions under which a device offers a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The device offers it by its version, a feature or a property.
    Device,
    /// One of these extensions, if it is enabled.
    Extensions(&'static [&'static str]),
}

/// The row of this number in a table whose numbers ascend.
pub fn row<T>(table: &'static [(u32, T)], number: u32) -> Option<&'static T> {
    table.binary_search_by_key(&number, |(number, _)| *number).ok().map(|at| &table[at].1)
}

/// The grammar of an instruction.
pub fn instruction(opcode: u16) -> Option<&'static Instruction> {
    row(INSTRUCTIONS, opcode.into())
}
