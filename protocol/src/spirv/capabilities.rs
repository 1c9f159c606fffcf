//! Capabilities: which a device was created with, which a module declares, and which its instructions and types need.

use super::generated::tables::CAPABILITIES;
use super::layout::error::ErrorKind;
use super::layout::grammar::{Enable, row};
use super::layout::opcode as op;
use super::layout::words::Instruction;
use std::collections::BTreeSet;

/// The capabilities that a module may declare on a device, by their numbers; `has` tells the features that the device was created with.
pub fn enabled(has: impl Fn(&Enable) -> bool) -> BTreeSet<u32> {
    let is_enabled = |enabled_by: &[Enable]| enabled_by.iter().any(&has);
    let found = CAPABILITIES.iter().filter(|(_, capability)| is_enabled(capability.enabled_by));
    found.map(|(number, _)| *number).collect()
}

/// The capabilities that a module declares, and those that come with them.
#[derive(Debug, Default)]
pub(super) struct Declared(BTreeSet<u32>);

impl Declared {
    /// `OpCapability`.
    pub(super) fn add(&mut self, number: u32) {
        if !self.0.insert(number) {
            return;
        }
        let declares = row(CAPABILITIES, number).map_or(&[][..], |capability| capability.declares);
        declares.iter().for_each(|number| self.add(*number));
    }

    /// Demands one of these capabilities, if there are any.
    pub(super) fn demand(&self, needed: &[u32]) -> Result<(), ErrorKind> {
        match needed.first() {
            Some(first) if !needed.iter().any(|number| self.0.contains(number)) => {
                Err(ErrorKind::Undeclared(*first))
            }
            _ => Ok(()),
        }
    }

    /// Demands the capabilities that a type needs by its width (SPIR-V 1.6, 2.16.1), beside those of the grammar.
    pub(super) fn demand_width(&self, instruction: &Instruction<'_>) -> Result<(), ErrorKind> {
        match (instruction.opcode, instruction.operands) {
            (op::TYPE_INT, [_, 8, ..]) => self.demand(INT8),
            (op::TYPE_INT, [_, 16, ..]) => self.demand(INT16),
            (op::TYPE_INT, [_, 64, ..]) => self.demand(INT64),
            (op::TYPE_FLOAT, [_, 16]) => self.demand(FLOAT16),
            (op::TYPE_FLOAT, [_, 64]) => self.demand(FLOAT64),
            _ => Ok(()),
        }
    }
}

/// `Int8`, and access to 8-bit storage.
const INT8: &[u32] = &[39, 4448, 4449, 4450];
/// `Int16`, and access to 16-bit storage.
const INT16: &[u32] = &[22, 4433, 4434, 4435, 4436];
/// `Int64`.
const INT64: &[u32] = &[11];
/// `Float16`, and access to 16-bit storage.
const FLOAT16: &[u32] = &[9, 4433, 4434, 4435, 4436];
/// `Float64`.
const FLOAT64: &[u32] = &[10];
