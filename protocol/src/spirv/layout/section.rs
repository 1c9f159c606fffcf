//! The order of a module's parts (SPIR-V 2.4).

use super::error::ErrorKind;
use super::opcode as op;

/// Parts in their order; debug instructions count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    /// `OpCapability`.
    Capabilities,
    /// `OpExtension`.
    Extensions,
    /// `OpExtInstImport`.
    Imports,
    /// `OpMemoryModel`.
    MemoryModel,
    /// `OpEntryPoint`.
    EntryPoints,
    /// `OpExecutionMode`, `OpExecutionModeId`.
    ExecutionModes,
    /// Sources and names.
    Debug,
    /// Decorations.
    Annotations,
    /// Types, constants and global variables.
    Declarations,
    /// Functions.
    Functions,
}

/// The part an instruction belongs to; none if it may stand among declarations and in functions.
pub(crate) fn of(opcode: u16) -> Option<Section> {
    Some(match opcode {
        op::CAPABILITY => Section::Capabilities,
        op::EXTENSION => Section::Extensions,
        op::EXT_INST_IMPORT => Section::Imports,
        op::MEMORY_MODEL => Section::MemoryModel,
        op::ENTRY_POINT => Section::EntryPoints,
        op::EXECUTION_MODE | op::EXECUTION_MODE_ID => Section::ExecutionModes,
        op::SOURCE_CONTINUED..=op::STRING | op::MODULE_PROCESSED => Section::Debug,
        op::DECORATE..=op::GROUP_MEMBER_DECORATE
        | op::DECORATE_ID
        | op::DECORATE_STRING
        | op::MEMBER_DECORATE_STRING => Section::Annotations,
        op::LINE | op::NO_LINE | op::EXT_INST | op::EXT_INST_WITH_FORWARD_REFS | op::UNDEF => return None,
        op::VARIABLE | op::UNTYPED_VARIABLE => return None,
        op::TYPE_FORWARD_POINTER => Section::Declarations,
        _ if op::is_type(opcode) || op::is_constant(opcode) => Section::Declarations,
        _ => Section::Functions,
    })
}

/// The place in the layout of a module that the parser has reached.
#[derive(Debug)]
pub(crate) struct Progress {
    at: Section,
    models: u32,
}

impl Progress {
    /// At the start.
    pub(crate) fn new() -> Self {
        Self { at: Section::Capabilities, models: 0 }
    }

    /// Goes on to an instruction and tells in which part it is.
    pub(crate) fn advance(&mut self, opcode: u16) -> Result<Section, ErrorKind> {
        let next = match of(opcode) {
            Some(section) => section,
            None => self.at.max(Section::Declarations),
        };
        // Lines may stand before all parts that they could belong to.
        let next = if matches!(opcode, op::LINE | op::NO_LINE) { next.max(self.at) } else { next };
        if next < self.at {
            return Err(ErrorKind::Order("instruction"));
        }
        self.models += u32::from(next == Section::MemoryModel);
        if self.models > 1 || (next > Section::MemoryModel && self.models == 0) {
            return Err(ErrorKind::Order("memory model"));
        }
        self.at = next;
        Ok(next)
    }

    /// Checks that the module had every part that a module must have.
    pub(crate) fn finish(&self) -> Result<(), ErrorKind> {
        if self.models == 1 { Ok(()) } else { Err(ErrorKind::Order("memory model")) }
    }
}
