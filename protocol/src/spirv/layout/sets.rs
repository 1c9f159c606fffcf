//! Extended instruction sets: the operands of their instructions, and which instructions take no part in the program.

use super::error::ErrorKind;
use super::grammar::{Operand, row};
use super::opcode as op;
use super::section::Section;
use super::words::Instruction;
use crate::spirv::generated::tables::{DEBUG_INFO, GLSL_STD_450, OPENCL_DEBUG_INFO_100};
use std::collections::HashMap;

/// Operands of an extended instruction before its own: its type, result, set and number.
const FIXED_OPERANDS: usize = 4;

/// An extended instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// `GLSL.std.450`.
    Glsl,
    /// A set whose instructions have only ids as operands, and can be left out of a program.
    NonSemantic,
    /// `DebugInfo`.
    DebugInfo,
    /// `OpenCL.DebugInfo.100`.
    OpenClDebugInfo,
}

/// The sets that a module imports, by id.
#[derive(Debug, Default)]
pub(crate) struct Sets(HashMap<u32, Set>);

impl Sets {
    /// `OpExtInstImport`.
    pub(crate) fn import(&mut self, id: u32, name: &[u8]) -> Result<(), ErrorKind> {
        let set = match name {
            b"GLSL.std.450" => Set::Glsl,
            b"DebugInfo" => Set::DebugInfo,
            b"OpenCL.DebugInfo.100" => Set::OpenClDebugInfo,
            name if name.starts_with(b"NonSemantic.") => Set::NonSemantic,
            _ => return Err(ErrorKind::NotOffered("an extended instruction set")),
        };
        self.0.insert(id, set);
        Ok(())
    }

    /// The set that was imported under an id; none if the id names no set.
    pub(crate) fn named(&self, id: u32) -> Option<Set> {
        self.0.get(&id).copied()
    }

    /// The set that an extended instruction belongs to.
    pub(crate) fn of(&self, instruction: &Instruction<'_>) -> Result<Set, ErrorKind> {
        let id = instruction.operands.get(2).ok_or(ErrorKind::Length)?;
        self.0.get(id).copied().ok_or(ErrorKind::IdKind(*id, "instruction set"))
    }

    /// Returns whether an instruction describes the program without taking part in it.
    pub(crate) fn is_remark(&self, instruction: &Instruction<'_>) -> bool {
        match instruction.opcode {
            op::LINE | op::NO_LINE => true,
            op::EXT_INST | op::EXT_INST_WITH_FORWARD_REFS => {
                self.of(instruction).is_ok_and(|set| set != Set::Glsl)
            }
            _ => false,
        }
    }

    /// The operands of an instruction, in two lists: those of an extended one as its set has them.
    pub(crate) fn operands(
        &self,
        instruction: &Instruction<'_>,
        core: &'static [Operand],
        section: Section,
    ) -> Result<[&'static [Operand]; 2], ErrorKind> {
        let opcode = instruction.opcode;
        if !matches!(opcode, op::EXT_INST | op::EXT_INST_WITH_FORWARD_REFS) {
            return Ok([core, &[]]);
        }
        let set = self.of(instruction)?;
        let [_, _, _, number, rest @ ..] = instruction.operands else { return Err(ErrorKind::Length) };
        let unknown = ErrorKind::Unknown("extended instruction");
        let own = match set {
            Set::NonSemantic => return Ok([core, &[]]),
            Set::DebugInfo => row(DEBUG_INFO, *number).ok_or(unknown)?,
            Set::OpenClDebugInfo => row(OPENCL_DEBUG_INFO_100, *number).ok_or(unknown)?,
            Set::Glsl if section != Section::Functions || opcode != op::EXT_INST => {
                return Err(ErrorKind::Order("instruction"));
            }
            Set::Glsl if *row(GLSL_STD_450, *number).ok_or(unknown)? != rest.len() => {
                return Err(ErrorKind::Length);
            }
            Set::Glsl => return Ok([core, &[]]),
        };
        Ok([core.get(..FIXED_OPERANDS).unwrap_or(core), own])
    }
}
