//! Constants that are made of integers and booleans: the sizes of arrays and workgroups, with specialisation applied.

use super::operations;
use super::types;
use crate::spirv::layout::error::ErrorKind;
use crate::spirv::layout::ids::Ids;
use crate::spirv::layout::opcode;
use crate::spirv::layout::words::Instruction;
use std::collections::HashMap;

/// Components of the longest vector.
const COMPONENTS_MAX: usize = 4;

/// A constant scalar or vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Constant {
    components: [Option<u64>; COMPONENTS_MAX],
    count: usize,
    /// Bits of a component; 1 for booleans.
    bits: u32,
    /// True if the value depends on specialisation.
    pub is_specialised: bool,
}

/// An integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Integer {
    /// The value as an unsigned number; `None` if only a driver can tell it, as for a division by zero.
    pub value: Option<u64>,
    /// True if the value depends on specialisation.
    pub is_specialised: bool,
}

/// Constants by id.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    values: HashMap<u32, Constant>,
    /// `SpecId` by target.
    spec_ids: HashMap<u32, u32>,
    /// Constants with a `SpecId`: it, and the bytes of a value.
    specialisable: Vec<(u32, u8)>,
    /// Values of specialisation constants instead of their defaults.
    overrides: Option<HashMap<u32, u64>>,
}

impl Constants {
    /// Starts with these values for specialisation constants; without values, sizes that depend on them count as 1.
    pub(crate) fn new(overrides: Option<HashMap<u32, u64>>) -> Self {
        Self { overrides, ..Self::default() }
    }

    /// Returns whether specialisation constants have values.
    pub(crate) fn is_specialised(&self) -> bool {
        self.overrides.is_some()
    }

    /// A constant that is an integer.
    pub(crate) fn integer(&self, id: u32) -> Result<Integer, ErrorKind> {
        match self.values.get(&id) {
            Some(Constant { components: [value, ..], count: 1, bits: 2.., is_specialised }) => {
                Ok(Integer { value: *value, is_specialised: *is_specialised })
            }
            _ => Err(ErrorKind::IdKind(id, "integer constant")),
        }
    }

    /// A constant that is a vector of three integers.
    pub(crate) fn size(&self, id: u32) -> Option<[Integer; 3]> {
        let found = self.values.get(&id).filter(|found| found.count == 3 && found.bits > 1)?;
        let integer = |value| Integer { value, is_specialised: found.is_specialised };
        Some([0, 1, 2].map(|index: usize| integer(found.components[index])))
    }

    /// `SpecId` and bytes of every constant that can be specialised.
    pub(crate) fn into_specialisable(self) -> Vec<(u32, u8)> {
        self.specialisable
    }

    /// `OpDecorate` with `SpecId`.
    pub(crate) fn name(&mut self, target: u32, spec_id: u32) {
        self.spec_ids.insert(target, spec_id);
    }

    /// `OpGroupDecorate`.
    pub(crate) fn name_as(&mut self, group: u32, targets: &[u32]) {
        if let Some(spec_id) = self.spec_ids.get(&group).copied() {
            self.spec_ids.extend(targets.iter().map(|target| (*target, spec_id)));
        }
    }

    /// Adds a constant; its operands are well-formed.
    pub(crate) fn add(
        &mut self,
        ids: &Ids,
        words: &[u32],
        instruction: &Instruction<'_>,
    ) -> Result<(), ErrorKind> {
        let &[ty, result, ref operands @ ..] = instruction.operands else { return Err(ErrorKind::Length) };
        let opcode = instruction.opcode;
        let spec_id = self.spec_ids.get(&result).copied();
        if let Some(spec_id) = spec_id {
            let bits = match opcode {
                opcode::SPEC_CONSTANT => {
                    types::scalar_bits(ids, words, ty).ok_or(ErrorKind::IdKind(ty, "number type"))?
                }
                _ => 32,
            };
            self.specialisable.push((spec_id, (bits / 8) as u8));
        }
        let Some((bits, count)) = shape(ids, words, ty) else { return Ok(()) };
        let known = |value| Constant {
            components: [Some(value & mask(bits)); COMPONENTS_MAX],
            count,
            bits,
            is_specialised: false,
        };
        let given = |default| {
            let given = self.overrides.as_ref().and_then(|given| given.get(&spec_id?).copied());
            // The value of a boolean is a VkBool32.
            let given = given.map(|value| if bits == 1 { u64::from(value != 0) } else { value });
            Constant { is_specialised: true, ..known(given.unwrap_or(default)) }
        };
        let unknown = Constant { components: [None; COMPONENTS_MAX], is_specialised: true, ..known(0) };
        let mut constant = match opcode {
            opcode::CONSTANT => known(number(operands)),
            opcode::CONSTANT_TRUE => known(1),
            opcode::CONSTANT_FALSE | opcode::CONSTANT_NULL => known(0),
            opcode::SPEC_CONSTANT => given(number(operands)),
            opcode::SPEC_CONSTANT_TRUE => given(1),
            opcode::SPEC_CONSTANT_FALSE => given(0),
            opcode::CONSTANT_COMPOSITE | opcode::SPEC_CONSTANT_COMPOSITE => {
                self.composite(operands, known(0))
            }
            opcode::CONSTANT_COMPOSITE_REPLICATE | opcode::SPEC_CONSTANT_COMPOSITE_REPLICATE => {
                let part = operands.first().copied().unwrap_or(0);
                self.composite(&[part; COMPONENTS_MAX][..count], known(0))
            }
            opcode::SPEC_CONSTANT_OP => match self.operate(ids, words, operands, count) {
                Some(components) => {
                    Constant { components: components.map(|c| Some(c? & mask(bits))), ..unknown }
                }
                None => unknown,
            },
            _ => return Ok(()),
        };
        if constant.is_specialised && self.overrides.is_none() {
            constant.components = [Some(1); COMPONENTS_MAX];
        }
        self.values.insert(result, constant);
        Ok(())
    }

    fn composite(&self, parts: &[u32], mut constant: Constant) -> Constant {
        for (component, part) in constant.components.iter_mut().zip(parts) {
            let part = self.values.get(part);
            *component = part.and_then(|part| part.components[0]);
            constant.is_specialised |= part.is_none_or(|part| part.is_specialised);
        }
        constant
    }

    /// The components that `OpSpecConstantOp` yields; none if it concerns more than scalars and vectors.
    fn operate(
        &self,
        ids: &Ids,
        words: &[u32],
        operands: &[u32],
        count: usize,
    ) -> Option<[Option<u64>; COMPONENTS_MAX]> {
        let (&operation, rest) = operands.split_first()?;
        let value = |index: usize| self.values.get(rest.get(index)?);
        let mut result = [None; COMPONENTS_MAX];
        match operation {
            operations::VECTOR_SHUFFLE => {
                let (a, b) = (value(0)?, value(1)?);
                let both: Vec<_> =
                    a.components[..a.count].iter().chain(&b.components[..b.count]).copied().collect();
                for (component, from) in result.iter_mut().zip(rest.get(2..)?) {
                    *component = both.get(*from as usize).copied().flatten();
                }
            }
            operations::COMPOSITE_EXTRACT => result = self.extract(ids, words, *rest.first()?, &rest[1..])?,
            operations::COMPOSITE_INSERT => {
                result = value(1)?.components;
                *result.get_mut(*rest.get(2)? as usize)? = value(0)?.components[0];
            }
            operations::SELECT => {
                let (condition, yes, no) = (value(0)?, value(1)?, value(2)?);
                for (index, component) in result.iter_mut().enumerate().take(count) {
                    let chosen = condition.components[index.min(condition.count - 1)];
                    *component = if chosen? != 0 { yes } else { no }.components[index];
                }
            }
            _ => {
                let a = value(0)?;
                let b = value(1);
                for (index, component) in result.iter_mut().enumerate().take(count) {
                    let b = b.and_then(|b| b.components[index]);
                    *component =
                        a.components[index].and_then(|a_| operations::scalar(operation, a_, b, a.bits));
                }
            }
        }
        Some(result)
    }

    /// The components of a number or vector in a constant composite, or of a number in a vector.
    fn extract(
        &self,
        ids: &Ids,
        words: &[u32],
        mut from: u32,
        path: &[u32],
    ) -> Option<[Option<u64>; COMPONENTS_MAX]> {
        for (depth, index) in path.iter().enumerate() {
            let index = *index as usize;
            if let Some(vector) = self.values.get(&from).filter(|vector| vector.count > 1) {
                let component = vector.components.get(index).filter(|_| depth + 1 == path.len())?;
                return Some([*component; COMPONENTS_MAX]);
            }
            let composite = ids.defined(from).ok()?;
            let is_composite =
                matches!(composite.opcode, opcode::CONSTANT_COMPOSITE | opcode::SPEC_CONSTANT_COMPOSITE);
            let parts = Instruction::read(words, composite.at as usize).ok().filter(|_| is_composite)?;
            from = *parts.operands.get(2..)?.get(index)?;
        }
        Some(self.values.get(&from)?.components)
    }
}

/// Bits and components of a scalar or vector of integers or booleans.
fn shape(ids: &Ids, words: &[u32], ty: u32) -> Option<(u32, usize)> {
    let id = ids.defined(ty).ok()?;
    let operand = |index: usize| words.get(id.at as usize + 1 + index).copied();
    match id.opcode {
        opcode::TYPE_BOOL => Some((1, 1)),
        opcode::TYPE_INT => Some((operand(1)?, 1)),
        opcode::TYPE_VECTOR => {
            let (component, count) = (ids.defined(operand(1)?).ok()?, operand(2)? as usize);
            let bits = match component.opcode {
                opcode::TYPE_BOOL => 1,
                opcode::TYPE_INT => words.get(component.at as usize + 2).copied()?,
                _ => return None,
            };
            (count <= COMPONENTS_MAX).then_some((bits, count))
        }
        _ => None,
    }
}

/// The mask of an integer of this width.
fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits.clamp(1, 64))
}

fn number(words: &[u32]) -> u64 {
    words.iter().take(2).rev().fold(0, |value, word| value << 32 | u64::from(*word))
}
