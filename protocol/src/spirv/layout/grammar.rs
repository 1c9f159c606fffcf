//! The shape of SPIR-V instructions: the kinds of operands. The tables in `generated` say which instruction has which operands.

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
    /// The opcode of an instruction without result and type, followed by its operands.
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

/// A value or bit, the operands that follow it, and the capabilities of which it needs one, if any.
pub type Enumerant = (u32, (&'static [Operand], &'static [u32]));

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

/// A capability.
#[derive(Clone, Copy, Debug)]
pub struct Capability {
    /// The name in the SPIR-V specification.
    pub name: &'static str,
    /// The capabilities that are declared with it.
    pub declares: &'static [u32],
    /// The parts of a device that enable it, each by itself.
    pub enabled_by: &'static [Enable],
}

/// A part of a device that enables a capability (Vulkan, "List of SPIR-V Capabilities").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enable {
    /// Vulkan 1 of this minor version.
    Version(u32),
    /// A device extension.
    Extension(&'static str),
    /// A feature: `VkStructureType` of the struct, and the index among its members behind `pNext`. The one of `VkPhysicalDeviceFeatures2`
    /// stands for `VkPhysicalDeviceFeatures`.
    Feature {
        /// The struct.
        s_type: i32,
        /// The member.
        index: usize,
    },
    /// A property: the program has checked whether the device has it.
    Property,
}

/// The row of this number in a table whose numbers ascend.
pub fn row<T>(table: &'static [(u32, T)], number: u32) -> Option<&'static T> {
    table.binary_search_by_key(&number, |(number, _)| *number).ok().map(|at| &table[at].1)
}

/// The grammar of an instruction.
pub fn instruction(opcode: u16) -> Option<&'static Instruction> {
    row(INSTRUCTIONS, opcode.into())
}
