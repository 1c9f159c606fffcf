//! The shape of SPIR-V instructions: what kinds of operands there are. Which instruction has which is in `generated`.

/// An operand of an instruction, or of an enumerant.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// Exactly one.
    One(Kind),
    /// None or one.
    Optional(Kind),
    /// As many as there are words.
    Any(Kind),
}

/// What an operand is.
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
    /// One of several values; those operands follow that the function tells, none if there is no such value.
    Value(fn(u32) -> Option<&'static [Operand]>),
    /// Bits, in this order, each with the operands that follow.
    Mask(&'static [(u32, &'static [Operand])]),
}

/// The grammar of one instruction.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// Its name in the specification.
    pub name: &'static str,
    /// Operands in order.
    pub operands: &'static [Operand],
    /// It needs one of these capabilities, if there are any.
    pub capabilities: &'static [u32],
}

/// What lets a device offer a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Its version, a feature or a property.
    Device,
    /// One of these extensions, if it is enabled.
    Extensions(&'static [&'static str]),
}
