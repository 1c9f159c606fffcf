//! Types and values as the checks of operations see them.

use crate::spirv::layout::error::ErrorKind;
use crate::spirv::layout::ids::Ids;
use crate::spirv::layout::opcode as op;
use crate::spirv::layout::sets::Sets;
use crate::spirv::layout::words::Instruction;
use crate::spirv::values::constants::Constants;
use crate::spirv::values::types::{self, Types};

/// All that is declared so far.
#[derive(Clone, Copy, Debug)]
pub(in crate::spirv) struct View<'v> {
    /// All ids.
    pub ids: &'v Ids,
    /// Types.
    pub types: &'v Types,
    /// Constants.
    pub constants: &'v Constants,
    /// Extended instruction sets.
    pub sets: &'v Sets,
    /// The words of the module.
    pub words: &'v [u32],
}

/// The kind of the components of a scalar or vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Bool,
    Int,
    Float,
}

/// A scalar or vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub class: Class,
    /// Bits of a component; 1 for booleans.
    pub bits: u32,
    /// Components; 1 for a scalar.
    pub count: u32,
}

impl<'v> View<'v> {
    /// The type of a value.
    pub(super) fn type_of(&self, value: u32) -> Result<u32, ErrorKind> {
        let found = self.ids.defined(value)?;
        let is_value = found.ty != 0 && found.opcode != op::FUNCTION && !op::is_type(found.opcode);
        if is_value { Ok(found.ty) } else { Err(ErrorKind::IdKind(value, "value")) }
    }

    /// The opcode of a type, and the operands that declare it.
    pub(super) fn declared(&self, ty: u32) -> Result<(u16, &'v [u32]), ErrorKind> {
        let at = self.ids.defined(ty)?.at as usize;
        let declared = Instruction::read(self.words, at).map_err(|error| error.kind)?;
        Ok((declared.opcode, declared.operands.get(1..).unwrap_or(&[])))
    }

    /// Returns whether two types are declared alike, decorations apart.
    pub(super) fn are_alike(&self, one: u32, other: u32) -> Result<bool, ErrorKind> {
        let form = |ty| self.types.of(self.ids, ty).map(|ty| ty.form);
        Ok(one == other || form(one)? == form(other)?)
    }

    /// Demands that two types are declared alike; `what` names those that would differ.
    pub(super) fn agree(&self, one: u32, other: u32, what: &'static str) -> Result<(), ErrorKind> {
        if self.are_alike(one, other)? { Ok(()) } else { Err(ErrorKind::Mismatch(what)) }
    }

    /// The storage class of a pointer and the type that it points to; no type if it is untyped.
    pub(super) fn pointer(&self, pointer: u32) -> Result<(u32, Option<u32>), ErrorKind> {
        let ty = self.type_of(pointer)?;
        self.pointer_type(ty).map_err(|_| ErrorKind::IdKind(pointer, "pointer"))
    }

    /// The storage class and the contents that the type of a pointer says.
    pub(super) fn pointer_type(&self, ty: u32) -> Result<(u32, Option<u32>), ErrorKind> {
        if let Some((class, contents)) = types::pointee(self.ids, self.words, ty) {
            return Ok((class, Some(contents)));
        }
        let class = types::untyped_class(self.ids, self.words, ty);
        Ok((class.ok_or(ErrorKind::IdKind(ty, "pointer type"))?, None))
    }

    /// The scalar or vector that a type is; none if it is another type.
    pub(super) fn numbers(&self, ty: u32) -> Result<Option<Numbers>, ErrorKind> {
        let (opcode, operands) = self.declared(ty)?;
        let class = match opcode {
            op::TYPE_BOOL => return Ok(Some(Numbers { class: Class::Bool, bits: 1, count: 1 })),
            op::TYPE_INT => Class::Int,
            op::TYPE_FLOAT => Class::Float,
            op::TYPE_VECTOR => {
                let &[component, count, ..] = operands else { return Err(ErrorKind::Length) };
                return Ok(self.numbers(component)?.map(|component| Numbers { count, ..component }));
            }
            _ => return Ok(None),
        };
        Ok(Some(Numbers { class, bits: *operands.first().ok_or(ErrorKind::Length)?, count: 1 }))
    }

    /// The scalar or vector that a value is.
    pub(super) fn numbers_of(&self, value: u32) -> Result<Option<Numbers>, ErrorKind> {
        self.numbers(self.type_of(value)?)
    }
}
