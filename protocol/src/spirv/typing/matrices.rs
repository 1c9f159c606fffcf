//! Products of vectors and matrices (SPIR-V 1.6, 3.52.13).

use super::numbers::WRONG;
use super::operation::Operation;
use super::view::{Class, View};
use crate::spirv::layout::error::ErrorKind;
use crate::spirv::layout::opcode as op;

/// Floats in columns; a vector is one column, a scalar one of a single row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    bits: u32,
    rows: u32,
    columns: u32,
}

/// Checks a product, or a matrix that is transposed.
pub(super) fn check(operation: &Operation<'_>, view: &View<'_>) -> Result<(), ErrorKind> {
    use op::{
        DOT, MATRIX_TIMES_MATRIX, MATRIX_TIMES_SCALAR, MATRIX_TIMES_VECTOR, OUTER_PRODUCT, TRANSPOSE,
        VECTOR_TIMES_MATRIX, VECTOR_TIMES_SCALAR,
    };
    let opcode = operation.opcode;
    if opcode != TRANSPOSE && !(VECTOR_TIMES_SCALAR..=DOT).contains(&opcode) {
        return Ok(());
    }
    let Some(result) = shape(view, operation.ty)? else { return by_scalar(operation, view) };
    let operand = |index| shape(view, view.type_of(operation.id(index)?)?)?.ok_or(WRONG);
    let one = operand(0)?;
    let other = if opcode == TRANSPOSE { one } else { operand(1)? };
    let made = |rows, columns| Shape { rows, columns, ..one };
    let expected = match opcode {
        TRANSPOSE => Some(made(one.columns, one.rows)),
        VECTOR_TIMES_SCALAR | MATRIX_TIMES_SCALAR => (other == made(1, 1)).then_some(one),
        // The vector is a row.
        VECTOR_TIMES_MATRIX => (other.rows == one.rows && one.columns == 1).then_some(made(other.columns, 1)),
        MATRIX_TIMES_VECTOR => (other == made(one.columns, 1)).then_some(made(one.rows, 1)),
        MATRIX_TIMES_MATRIX => (other.rows == one.columns).then_some(made(one.rows, other.columns)),
        OUTER_PRODUCT => (one.columns == 1 && other.columns == 1).then_some(made(one.rows, other.rows)),
        DOT => (other == one && one.columns == 1 && one.rows > 1).then_some(made(1, 1)),
        _ => None,
    };
    if expected == Some(result) && one.bits == other.bits { Ok(()) } else { Err(WRONG) }
}

/// Checks a product of a scalar and a matrix that subgroups hold, or a long vector.
fn by_scalar(operation: &Operation<'_>, view: &View<'_>) -> Result<(), ErrorKind> {
    let (opcode, operands) = view.declared(operation.ty)?;
    let is_known = matches!(
        opcode,
        op::TYPE_COOPERATIVE_MATRIX | op::TYPE_COOPERATIVE_MATRIX_NV | op::TYPE_COOPERATIVE_VECTOR
    );
    if !is_known || !matches!(operation.opcode, op::MATRIX_TIMES_SCALAR | op::VECTOR_TIMES_SCALAR) {
        return Err(WRONG);
    }
    view.agree(operation.ty, view.type_of(operation.id(0)?)?, "operands and result")?;
    let component = operands.first().copied().ok_or(ErrorKind::Length)?;
    view.agree(component, view.type_of(operation.id(1)?)?, "operands and result")
}

/// The shape of a scalar, vector or matrix of floats; none for other types.
fn shape(view: &View<'_>, ty: u32) -> Result<Option<Shape>, ErrorKind> {
    let (opcode, operands) = view.declared(ty)?;
    let (column, columns) = match operands {
        [column, columns, ..] if opcode == op::TYPE_MATRIX => (*column, *columns),
        _ => (ty, 1),
    };
    let numbers = view.numbers(column)?.filter(|numbers| numbers.class == Class::Float);
    Ok(numbers.map(|numbers| Shape { bits: numbers.bits, rows: numbers.count, columns }))
}
