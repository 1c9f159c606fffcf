//! Paths through types: access chains, and parts of composites (SPIR-V 1.6, 3.52.8 and 3.52.12).

use super::operation::Operation;
use super::view::{Class, View};
use crate::spirv::layout::error::ErrorKind;
use crate::spirv::layout::opcode as op;

/// One step from a composite to one of its parts.
#[derive(Clone, Copy, Debug)]
enum Index {
    /// The index itself.
    Literal(u32),
    /// A value.
    Value(u32),
}

/// Checks that a path ends inside the type that it starts from, at a part of the result's type.
pub(super) fn check(operation: &Operation<'_>, view: &View<'_>) -> Result<(), ErrorKind> {
    let Operation { opcode, ty, words, .. } = *operation;
    match (opcode, words) {
        (op::ACCESS_CHAIN | op::IN_BOUNDS_ACCESS_CHAIN, [base, path @ ..]) => typed(view, ty, *base, path),
        (op::PTR_ACCESS_CHAIN | op::IN_BOUNDS_PTR_ACCESS_CHAIN, [base, element, path @ ..]) => {
            integer(view, *element)?;
            typed(view, ty, *base, path)
        }
        (op::UNTYPED_ACCESS_CHAIN | op::UNTYPED_IN_BOUNDS_ACCESS_CHAIN, [contents, base, path @ ..]) => {
            untyped(view, ty, *contents, *base, path)
        }
        (
            op::UNTYPED_PTR_ACCESS_CHAIN | op::UNTYPED_IN_BOUNDS_PTR_ACCESS_CHAIN,
            [contents, base, element, path @ ..],
        ) => {
            integer(view, *element)?;
            untyped(view, ty, *contents, *base, path)
        }
        (op::ARRAY_LENGTH, [pointer, member]) => match view.pointer(*pointer)? {
            (_, Some(contents)) => runtime_array(view, contents, *member),
            (_, None) => Err(ErrorKind::IdKind(*pointer, "pointer to a structure")),
        },
        (op::UNTYPED_ARRAY_LENGTH, [contents, pointer, member]) => {
            view.pointer(*pointer)?;
            runtime_array(view, *contents, *member)
        }
        (op::COMPOSITE_EXTRACT, [composite, path @ ..]) => {
            let reached = reach(view, view.type_of(*composite)?, path.iter().copied().map(Index::Literal))?;
            view.agree(reached, ty, "a part and its place")
        }
        (op::COMPOSITE_INSERT, [part, composite, path @ ..]) => {
            let whole = view.type_of(*composite)?;
            view.agree(whole, ty, "a composite and its copy")?;
            let reached = reach(view, whole, path.iter().copied().map(Index::Literal))?;
            view.agree(reached, view.type_of(*part)?, "a part and its place")
        }
        _ => Ok(()),
    }
}

/// Checks a chain whose base is a typed pointer.
fn typed(view: &View<'_>, ty: u32, base: u32, path: &[u32]) -> Result<(), ErrorKind> {
    let (class, contents) = view.pointer(base)?;
    let contents = contents.ok_or(ErrorKind::IdKind(base, "typed pointer"))?;
    let reached = reach(view, contents, path.iter().copied().map(Index::Value))?;
    match view.pointer_type(ty)? {
        (result, Some(part)) if result == class => {
            view.agree(reached, part, "an access chain and its pointer")
        }
        _ => Err(ErrorKind::Mismatch("an access chain and its pointer")),
    }
}

/// Checks a chain whose base counts as a pointer to `contents`.
fn untyped(view: &View<'_>, ty: u32, contents: u32, base: u32, path: &[u32]) -> Result<(), ErrorKind> {
    view.ids.type_index(contents)?;
    reach(view, contents, path.iter().copied().map(Index::Value))?;
    match (view.pointer_type(ty)?, view.pointer(base)?) {
        ((result, None), (class, _)) if result == class => Ok(()),
        _ => Err(ErrorKind::Mismatch("an access chain and its pointer")),
    }
}

/// Demands that the member of this index is the last of a structure, and an array without length.
fn runtime_array(view: &View<'_>, ty: u32, member: u32) -> Result<(), ErrorKind> {
    let (opcode, members) = view.declared(ty)?;
    let last = members.last().filter(|_| opcode == op::TYPE_STRUCT && member as usize + 1 == members.len());
    match last.map(|last| view.declared(*last)).transpose()? {
        Some((op::TYPE_RUNTIME_ARRAY, _)) => Ok(()),
        _ => Err(ErrorKind::Range("index of an array without length")),
    }
}

/// The type that is reached from `ty` on a path.
fn reach(view: &View<'_>, ty: u32, mut path: impl Iterator<Item = Index>) -> Result<u32, ErrorKind> {
    path.try_fold(ty, |ty, index| part(view, ty, index))
}

fn part(view: &View<'_>, ty: u32, index: Index) -> Result<u32, ErrorKind> {
    let (opcode, operands) = view.declared(ty)?;
    let outside = ErrorKind::Range("index of a part");
    if let Index::Value(value) = index {
        integer(view, value)?;
    }
    let (part, count) = match opcode {
        op::TYPE_STRUCT => {
            return operands
                .get(member(view, index)? as usize)
                .copied()
                .ok_or(ErrorKind::Range("index of a member"));
        }
        op::TYPE_VECTOR | op::TYPE_MATRIX => {
            (operands.first(), operands.get(1).map(|count| u64::from(*count)))
        }
        op::TYPE_ARRAY => {
            let length = view.constants.integer(*operands.get(1).ok_or(ErrorKind::Length)?)?;
            (operands.first(), length.value.filter(|_| !length.is_specialised))
        }
        op::TYPE_RUNTIME_ARRAY
        | op::TYPE_COOPERATIVE_MATRIX
        | op::TYPE_COOPERATIVE_MATRIX_NV
        | op::TYPE_COOPERATIVE_VECTOR => (operands.first(), None),
        _ => return Err(ErrorKind::IdKind(ty, "type with parts")),
    };
    // A constant out of range is allowed, because the program may never reach it; a literal out of range is not.
    if let (Index::Literal(index), Some(count)) = (index, count)
        && u64::from(index) >= count
    {
        return Err(outside);
    }
    part.copied().ok_or(ErrorKind::Length)
}

/// The index of a structure's member, which is a constant that cannot be specialised.
fn member(view: &View<'_>, index: Index) -> Result<u32, ErrorKind> {
    match index {
        Index::Literal(index) => Ok(index),
        Index::Value(id) => {
            let constant = view.constants.integer(id)?;
            let value = constant.value.filter(|_| !constant.is_specialised);
            let value = value.ok_or(ErrorKind::IdKind(id, "integer constant"))?;
            u32::try_from(value).map_err(|_| ErrorKind::Range("index of a member"))
        }
    }
}

/// Demands that a value is an integer.
fn integer(view: &View<'_>, value: u32) -> Result<(), ErrorKind> {
    match view.numbers_of(value)? {
        Some(numbers) if numbers.class == Class::Int && numbers.count == 1 => Ok(()),
        _ => Err(ErrorKind::IdKind(value, "integer")),
    }
}
