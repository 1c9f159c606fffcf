//! Values that are moved, chosen, put together or handed on: their types are those of their destinations.

use super::operation::Operation;
use super::view::{Class, Numbers, View};
use crate::spirv::layout::error::ErrorKind;
use crate::spirv::layout::opcode as op;
use crate::spirv::layout::words::Instruction;

/// The index in a shuffle that names no component.
const NO_COMPONENT: u32 = u32::MAX;

/// Checks an operation that moves values.
pub(super) fn check(operation: &Operation<'_>, view: &View<'_>) -> Result<(), ErrorKind> {
    let Operation { opcode, ty, words, used } = *operation;
    let id = |index| operation.id(index);
    match opcode {
        op::LOAD => points_to(view, id(0)?, ty),
        op::STORE => points_to(view, id(0)?, view.type_of(id(1)?)?),
        op::COPY_MEMORY => match (view.pointer(id(0)?)?, view.pointer(id(1)?)?) {
            ((_, Some(to)), (_, Some(from))) => view.agree(to, from, "a copy and its source"),
            ((_, None), (_, None)) => Err(ErrorKind::IdKind(id(0)?, "typed pointer")),
            _ => Ok(()),
        },
        op::COPY_OBJECT | op::COPY_LOGICAL => view.agree(ty, view.type_of(id(0)?)?, "a copy and its source"),
        op::SELECT => select(operation, view),
        op::VECTOR_SHUFFLE => shuffle(view, ty, words),
        op::VECTOR_EXTRACT_DYNAMIC => component(view, view.type_of(id(0)?)?, ty, id(1)?),
        op::VECTOR_INSERT_DYNAMIC => {
            view.agree(ty, view.type_of(id(0)?)?, "a vector and its copy")?;
            component(view, ty, view.type_of(id(1)?)?, id(2)?)
        }
        op::COMPOSITE_CONSTRUCT => construct(view, ty, used),
        _ => Ok(()),
    }
}

/// Checks the types of the arguments and of the result of a call of the function that `called` declares, when all functions are known.
pub(in crate::spirv) fn check_call(view: &View<'_>, call: usize, called: usize) -> Result<(), ErrorKind> {
    let read = |at| Instruction::read(view.words, at).map_err(|error| error.kind);
    let (&[result, _, _, ref arguments @ ..], &[_, _, _, function_type]) =
        (read(call)?.operands, read(called)?.operands)
    else {
        return Err(ErrorKind::Length);
    };
    let (_, types) = view.declared(function_type)?;
    let (returned, parameters) = types.split_first().ok_or(ErrorKind::Length)?;
    view.agree(result, *returned, "a call and its function")?;
    arguments.iter().zip(parameters).try_for_each(|(argument, parameter)| {
        view.agree(view.type_of(*argument)?, *parameter, "an argument and its parameter")
    })
}

/// Demands a pointer to a value of this type, or an untyped one.
fn points_to(view: &View<'_>, pointer: u32, ty: u32) -> Result<(), ErrorKind> {
    let (_, contents) = view.pointer(pointer)?;
    contents.map_or(Ok(()), |contents| view.agree(contents, ty, "a pointer and a value"))
}

fn select(operation: &Operation<'_>, view: &View<'_>) -> Result<(), ErrorKind> {
    for index in 1..=2 {
        view.agree(operation.ty, view.type_of(operation.id(index)?)?, "a choice and its result")?;
    }
    let result = view.numbers(operation.ty)?;
    match view.numbers_of(operation.id(0)?)? {
        Some(Numbers { class: Class::Bool, count: 1, .. }) => Ok(()),
        Some(Numbers { class: Class::Bool, count, .. })
            if result.is_some_and(|found| found.count == count) =>
        {
            Ok(())
        }
        _ => Err(ErrorKind::Mismatch("a condition and its choices")),
    }
}

fn shuffle(view: &View<'_>, ty: u32, words: &[u32]) -> Result<(), ErrorKind> {
    let [one, other, chosen @ ..] = words else { return Err(ErrorKind::Length) };
    let (one, other) = (view.numbers_of(*one)?, view.numbers_of(*other)?);
    let (Some(result), Some(one), Some(other)) = (view.numbers(ty)?, one, other) else {
        return Err(ErrorKind::Mismatch("a vector and its parts"));
    };
    let scalar = |numbers| Numbers { count: 1, ..numbers };
    let is_fitting = scalar(one) == scalar(result) && scalar(other) == scalar(result);
    if !is_fitting || result.count as usize != chosen.len() || one.count < 2 || other.count < 2 {
        return Err(ErrorKind::Mismatch("a vector and its parts"));
    }
    let exists = |index: &u32| *index == NO_COMPONENT || *index < one.count + other.count;
    if chosen.iter().all(exists) { Ok(()) } else { Err(ErrorKind::Range("index of a component")) }
}

/// Checks one component of a vector that a value chooses.
fn component(view: &View<'_>, vector: u32, component: u32, index: u32) -> Result<(), ErrorKind> {
    let (opcode, operands) = view.declared(vector)?;
    let declared =
        operands.first().filter(|_| matches!(opcode, op::TYPE_VECTOR | op::TYPE_COOPERATIVE_VECTOR));
    let declared = declared.ok_or(ErrorKind::IdKind(vector, "vector type"))?;
    view.agree(*declared, component, "a vector and its component")?;
    match view.numbers_of(index)? {
        Some(Numbers { class: Class::Int, count: 1, .. }) => Ok(()),
        _ => Err(ErrorKind::IdKind(index, "integer")),
    }
}

fn construct(view: &View<'_>, ty: u32, used: &[u32]) -> Result<(), ErrorKind> {
    const WHAT: &str = "a composite and its parts";
    let (opcode, operands) = view.declared(ty)?;
    let each = |part: u32, count: Option<u64>| {
        if count.is_some_and(|count| count != used.len() as u64) {
            return Err(ErrorKind::Mismatch(WHAT));
        }
        used.iter().try_for_each(|value| view.agree(part, view.type_of(*value)?, WHAT))
    };
    let part = || operands.first().copied().ok_or(ErrorKind::Length);
    match opcode {
        op::TYPE_VECTOR => vector(view, ty, used),
        op::TYPE_MATRIX => each(part()?, operands.get(1).map(|count| u64::from(*count))),
        op::TYPE_ARRAY => {
            let length = view.constants.integer(*operands.get(1).ok_or(ErrorKind::Length)?)?;
            let is_known = !length.is_specialised || view.constants.is_specialised();
            each(part()?, length.value.filter(|_| is_known))
        }
        op::TYPE_STRUCT if operands.len() != used.len() => Err(ErrorKind::Mismatch(WHAT)),
        op::TYPE_STRUCT => {
            let mut members = operands.iter().zip(used);
            members.try_for_each(|(member, value)| view.agree(*member, view.type_of(*value)?, WHAT))
        }
        op::TYPE_COOPERATIVE_MATRIX | op::TYPE_COOPERATIVE_MATRIX_NV => each(part()?, Some(1)),
        op::TYPE_COOPERATIVE_VECTOR => Ok(()),
        _ => Err(ErrorKind::IdKind(ty, "type with parts")),
    }
}

/// Checks a vector that is made of scalars and vectors.
fn vector(view: &View<'_>, ty: u32, used: &[u32]) -> Result<(), ErrorKind> {
    let mismatch = ErrorKind::Mismatch("a vector and its parts");
    let result = view.numbers(ty)?.ok_or(mismatch)?;
    let mut count = 0u32;
    for value in used {
        let part = view.numbers_of(*value)?.ok_or(mismatch)?;
        if (part.class, part.bits) != (result.class, result.bits) {
            return Err(mismatch);
        }
        count = count.saturating_add(part.count);
    }
    if count == result.count { Ok(()) } else { Err(mismatch) }
}
