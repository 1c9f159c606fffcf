//! Integer constants: what arrays and workgroups are sized by, with specialisation applied.

use super::error::ErrorKind;
use super::ids::Ids;
use super::opcode;
use super::types::scalar_bits;
use super::words::Instruction;
use std::collections::HashMap;

/// The value of an integer constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// The value, of an unsigned number.
    pub value: u64,
    /// It depends on specialisation.
    pub is_specialised: bool,
}

/// Integer constants by id.
#[derive(Debug, Default)]
pub struct Constants {
    values: HashMap<u32, Length>,
    /// `SpecId` by target.
    spec_ids: HashMap<u32, u32>,
    /// Constants with a `SpecId`: it, and the bytes of a value.
    specialisable: Vec<(u32, u8)>,
    /// Values of specialisation constants instead of their defaults.
    overrides: Option<HashMap<u32, u64>>,
}

impl Constants {
    /// With these values for specialisation constants; without, what depends on them counts as 1.
    pub fn new(overrides: Option<HashMap<u32, u64>>) -> Self {
        Self { overrides, ..Self::default() }
    }

    /// The value of a constant, if it is an integer.
    pub fn length(&self, id: u32) -> Option<Length> {
        self.values.get(&id).copied()
    }

    /// `SpecId` and bytes of every constant that can be specialised.
    pub fn into_specialisable(self) -> Vec<(u32, u8)> {
        self.specialisable
    }

    /// `OpDecorate` with `SpecId`.
    pub fn name(&mut self, target: u32, spec_id: u32) {
        self.spec_ids.insert(target, spec_id);
    }

    /// Adds a constant; its operands are well-formed.
    pub fn add(&mut self, ids: &Ids, words: &[u32], instruction: &Instruction<'_>) -> Result<(), ErrorKind> {
        let &[ty, result, ref operands @ ..] = instruction.operands else { return Err(ErrorKind::Length) };
        let spec_id = self.spec_ids.get(&result).copied();
        if let Some(spec_id) = spec_id {
            let bits = match instruction.opcode {
                opcode::SPEC_CONSTANT => {
                    scalar_bits(ids, words, ty).ok_or(ErrorKind::IdKind("number type"))?
                }
                _ => 32,
            };
            self.specialisable.push((spec_id, (bits / 8) as u8));
        }
        if ids.defined(ty)?.opcode != opcode::TYPE_INT {
            return Ok(());
        }
        let value = match instruction.opcode {
            opcode::CONSTANT => Some(Length { value: number(operands), is_specialised: false }),
            opcode::CONSTANT_NULL => Some(Length { value: 0, is_specialised: false }),
            opcode::SPEC_CONSTANT => {
                let given = self.overrides.as_ref().and_then(|given| given.get(&spec_id?).copied());
                Some(Length { value: given.unwrap_or_else(|| number(operands)), is_specialised: true })
            }
            opcode::SPEC_CONSTANT_OP => {
                let bits = scalar_bits(ids, words, ty).unwrap_or(32);
                Some(Length { value: self.operate(operands, bits).unwrap_or(1), is_specialised: true })
            }
            _ => None,
        };
        if let Some(mut value) = value {
            if value.is_specialised && self.overrides.is_none() {
                value.value = 1;
            }
            self.values.insert(result, value);
        }
        Ok(())
    }

    /// The usual operations on lengths; none for others.
    fn operate(&self, operands: &[u32], bits: u32) -> Option<u64> {
        let &[operation, first, ref rest @ ..] = operands else { return None };
        let a = self.length(first)?.value;
        let b = rest.first().and_then(|id| self.length(*id)).map(|b| b.value);
        let value = match (operation, b) {
            (113 | 114, _) => a,
            (128, Some(b)) => a.wrapping_add(b),
            (130, Some(b)) => a.wrapping_sub(b),
            (132, Some(b)) => a.wrapping_mul(b),
            (134 | 135, Some(b)) => a.checked_div(b)?,
            (137 | 139, Some(b)) => a.checked_rem(b)?,
            (194 | 195, Some(b)) => a.checked_shr(b as u32)?,
            (196, Some(b)) => a.checked_shl(b as u32)?,
            (197, Some(b)) => a | b,
            (198, Some(b)) => a ^ b,
            (199, Some(b)) => a & b,
            _ => return None,
        };
        Some(if bits >= 64 { value } else { value & ((1 << bits) - 1) })
    }
}

fn number(words: &[u32]) -> u64 {
    words.iter().take(2).rev().fold(0, |value, word| value << 32 | u64::from(*word))
}
