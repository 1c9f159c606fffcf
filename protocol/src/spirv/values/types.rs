//! Types of a module: how large their values are, how deep they nest, and that their parts are allowed.

use super::constants::Constants;
use crate::spirv::layout::error::ErrorKind;
use crate::spirv::layout::ids::{Id, Ids};
use crate::spirv::layout::opcode;
use crate::spirv::layout::words::Instruction;
use std::collections::HashMap;

/// The facts that are kept of a type.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Type {
    /// Bytes of its numbers, without padding; 0 if that is not known before a shader runs.
    pub bytes: u64,
    /// Numbers it is made of, at least 1.
    pub leaves: u64,
    /// The depth to which structs and arrays nest in it.
    pub depth: u32,
    /// A specialisation constant takes part in its size.
    pub is_specialised: bool,
    /// The index of the first type that is declared like it, decorations apart.
    pub form: u32,
}

/// Bits of a scalar of numbers; none if it is another type.
pub(crate) fn scalar_bits(ids: &Ids, words: &[u32], ty: u32) -> Option<u32> {
    let id = ids.defined(ty).ok()?;
    let is_number = matches!(id.opcode, opcode::TYPE_INT | opcode::TYPE_FLOAT);
    if is_number { words.get(id.at as usize + 2).copied() } else { None }
}

/// Returns the type that a pointer points to, and its storage class; `None` if the type is no typed pointer.
pub(crate) fn pointee(ids: &Ids, words: &[u32], ty: u32) -> Option<(u32, u32)> {
    let id = ids.defined(ty).ok().filter(|id| id.opcode == opcode::TYPE_POINTER)?;
    Some((*words.get(id.at as usize + 2)?, *words.get(id.at as usize + 3)?))
}

/// The storage class of an untyped pointer; none if it is another type.
pub(crate) fn untyped_class(ids: &Ids, words: &[u32], ty: u32) -> Option<u32> {
    let id = ids.defined(ty).ok().filter(|id| id.opcode == opcode::TYPE_UNTYPED_POINTER)?;
    words.get(id.at as usize + 2).copied()
}

/// All types so far, in their order.
#[derive(Debug, Default)]
pub(crate) struct Types {
    all: Vec<Type>,
    /// The first type of each form, by its opcode and operands with forms in the place of types.
    forms: HashMap<Box<[u32]>, u32>,
}

/// A pointer to any type.
const POINTER: Type = Type { bytes: 8, leaves: 1, depth: 0, is_specialised: false, form: 0 };
/// The bit that marks an entry in a form as a type that is declared later: its id.
const LATER: u32 = 1 << 31;

/// Returns whether `OpTypeForwardPointer` announced an id that is not declared yet; the end of the pass checks that a declaration came.
pub(crate) fn is_pointer_to_come(id: Id) -> bool {
    id.at == 0 && id.is_announced
}

impl Types {
    /// Returns the facts of a type by its id.
    pub(crate) fn of(&self, ids: &Ids, ty: u32) -> Result<Type, ErrorKind> {
        self.all.get(ids.type_index(ty)?).copied().ok_or(ErrorKind::IdMissing(ty))
    }

    /// Returns the number of types.
    pub(crate) fn count(&self) -> u32 {
        self.all.len() as u32
    }

    /// Adds the type that `instruction` declares and returns it; the ids it uses, forward pointers apart, are defined.
    pub(crate) fn add(
        &mut self,
        ids: &Ids,
        constants: &Constants,
        instruction: &Instruction<'_>,
        depth_max: u32,
    ) -> Result<Type, ErrorKind> {
        let new = self.describe(ids, constants, instruction)?;
        if new.depth > depth_max {
            return Err(ErrorKind::Limit("nested types (shader_type_depth)"));
        }
        let (index, form) = (self.count(), self.form(ids, constants, instruction)?);
        let form = *self.forms.entry(form).or_insert(index);
        self.all.push(Type { form, ..new });
        Ok(new)
    }

    /// The words that are equal for two types that are declared alike.
    fn form(
        &self,
        ids: &Ids,
        constants: &Constants,
        instruction: &Instruction<'_>,
    ) -> Result<Box<[u32]>, ErrorKind> {
        let opcode = instruction.opcode;
        let part = |id: u32| self.of(ids, id).map_or(id | LATER, |ty| ty.form);
        let mut form = instruction.operands.to_vec();
        *form.first_mut().ok_or(ErrorKind::Length)? = opcode.into();
        let parts = match opcode {
            opcode::TYPE_STRUCT | opcode::TYPE_FUNCTION => 1..form.len(),
            opcode::TYPE_POINTER => 2..3,
            opcode::TYPE_INT | opcode::TYPE_FLOAT | opcode::TYPE_UNTYPED_POINTER => 0..0,
            _ => 1..2.min(form.len()),
        };
        let parts = form.get_mut(parts).ok_or(ErrorKind::Length)?;
        parts.iter_mut().for_each(|id| *id = part(*id));
        if opcode == opcode::TYPE_ARRAY {
            let length = constants.integer(instruction.word(2).map_err(|error| error.kind)?)?;
            if let Some(value) = length.value.filter(|_| !length.is_specialised) {
                form.splice(2.., [value as u32, (value >> 32) as u32]);
            }
        }
        Ok(form.into())
    }

    fn describe(
        &self,
        ids: &Ids,
        constants: &Constants,
        instruction: &Instruction<'_>,
    ) -> Result<Type, ErrorKind> {
        let word = |index| instruction.word(index).map_err(|error| error.kind);
        let scalar = |bits: u32| Type { bytes: u64::from(bits / 8), leaves: 1, ..Type::default() };
        Ok(match instruction.opcode {
            opcode::TYPE_INT if !matches!((word(1)?, word(2)?), (8 | 16 | 32 | 64, 0 | 1)) => {
                return Err(ErrorKind::Range("width of an integer"));
            }
            opcode::TYPE_FLOAT if !is_float(&instruction.operands[1..]) => {
                return Err(ErrorKind::Range("width of a float"));
            }
            opcode::TYPE_INT | opcode::TYPE_FLOAT => scalar(word(1)?),
            opcode::TYPE_VECTOR => {
                let (component, count) = (word(1)?, word(2)?);
                if !matches!(ids.defined(component)?.opcode, opcode::TYPE_BOOL..=opcode::TYPE_FLOAT) {
                    return Err(ErrorKind::IdKind(component, "scalar type"));
                }
                if !(2..=4).contains(&count) {
                    return Err(ErrorKind::Range("size of a vector"));
                }
                repeated(self.of(ids, component)?, u64::from(count), 0)
            }
            opcode::TYPE_MATRIX => {
                let (column, count) = (word(1)?, word(2)?);
                if ids.defined(column)?.opcode != opcode::TYPE_VECTOR || !(2..=4).contains(&count) {
                    return Err(ErrorKind::Range("shape of a matrix"));
                }
                repeated(self.of(ids, column)?, u64::from(count), 0)
            }
            opcode::TYPE_ARRAY => {
                let length = constants.integer(word(2)?)?;
                let value = length.value.filter(|value| *value >= 1);
                let value = value.ok_or(ErrorKind::Range("length of an array"))?;
                let mut array = repeated(self.element(ids, word(1)?)?, value, 1);
                array.is_specialised |= length.is_specialised;
                array
            }
            opcode::TYPE_RUNTIME_ARRAY => {
                let element = self.element(ids, word(1)?)?;
                Type { bytes: 0, leaves: 1, depth: element.depth + 1, ..element }
            }
            opcode::TYPE_STRUCT => self.members(ids, &instruction.operands[1..])?,
            opcode::TYPE_FUNCTION => {
                for ty in &instruction.operands[1..] {
                    if !is_pointer_to_come(ids.any(*ty)?) {
                        ids.type_index(*ty)?;
                    }
                }
                scalar(0)
            }
            opcode::TYPE_POINTER => {
                let contents = word(2)?;
                if ids.any(contents)?.at != 0 {
                    ids.type_index(contents)?;
                }
                POINTER
            }
            opcode::TYPE_UNTYPED_POINTER => POINTER,
            opcode::TYPE_SAMPLED_IMAGE if ids.defined(word(1)?)?.opcode != opcode::TYPE_IMAGE => {
                return Err(ErrorKind::IdKind(word(1)?, "image type"));
            }
            opcode::TYPE_IMAGE
                if !matches!(
                    ids.defined(word(1)?)?.opcode,
                    opcode::TYPE_VOID | opcode::TYPE_INT | opcode::TYPE_FLOAT
                ) =>
            {
                return Err(ErrorKind::IdKind(word(1)?, "scalar type"));
            }
            opcode::TYPE_BOOL => scalar(32),
            _ => scalar(0),
        })
    }

    /// A type that arrays and structs can hold.
    fn element(&self, ids: &Ids, ty: u32) -> Result<Type, ErrorKind> {
        let id = ids.any(ty)?;
        match id.opcode {
            opcode::TYPE_VOID | opcode::TYPE_FUNCTION => Err(ErrorKind::IdKind(ty, "type of values")),
            _ if is_pointer_to_come(id) => Ok(POINTER),
            _ => self.of(ids, ty),
        }
    }

    fn members(&self, ids: &Ids, members: &[u32]) -> Result<Type, ErrorKind> {
        let mut sum = Type { leaves: 1, ..Type::default() };
        for member in members {
            // No instruction has announced this type: a type that a struct names before its declaration must be a pointer.
            let member = if ids.any(*member)?.at == 0 { POINTER } else { self.element(ids, *member)? };
            sum.bytes = sum.bytes.saturating_add(member.bytes);
            sum.leaves = sum.leaves.saturating_add(member.leaves);
            sum.depth = sum.depth.max(member.depth);
            sum.is_specialised |= member.is_specialised;
        }
        sum.depth += 1;
        Ok(sum)
    }
}

/// Returns whether floats have this width and encoding: one of IEEE 754, `BFloat16KHR`, or one of 8 bits.
fn is_float(declared: &[u32]) -> bool {
    matches!(declared, [16 | 32 | 64] | [16, 0] | [8, 4214 | 4215])
}

fn repeated(element: Type, count: u64, deeper: u32) -> Type {
    Type {
        bytes: element.bytes.saturating_mul(count),
        leaves: element.leaves.saturating_mul(count),
        depth: element.depth + deeper,
        ..element
    }
}
