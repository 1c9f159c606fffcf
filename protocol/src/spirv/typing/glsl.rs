//! Operations of `GLSL.std.450` on scalars and vectors.

use super::numbers::WRONG;
use super::operation::Operation;
use super::view::Class::{self, Float, Int};
use super::view::{Numbers, View};
use crate::spirv::layout::error::ErrorKind;
use crate::spirv::layout::opcode as op;
use crate::spirv::layout::sets::Set;

/// `Determinant` and `MatrixInverse`.
const OF_MATRIX: [u32; 2] = [33, 34];
/// `Modf` and `Frexp`, which store the second part of their result.
const STORING: [u32; 2] = [35, 51];
/// `ModfStruct` and `FrexpStruct`, whose result has both parts.
const SPLITTING: [u32; 2] = [36, 52];
/// `Ldexp`.
const LDEXP: u32 = 53;
/// `Length`.
const LENGTH: u32 = 66;
/// `Distance`.
const DISTANCE: u32 = 67;
/// `Refract`.
const REFRACT: u32 = 72;

/// Checks an operation of the set.
pub(super) fn check(operation: &Operation<'_>, view: &View<'_>) -> Result<(), ErrorKind> {
    let [set, number, operands @ ..] = operation.words else { return Ok(()) };
    if operation.opcode != op::EXT_INST || view.sets.named(*set) != Some(Set::Glsl) {
        return Ok(());
    }
    match (*number, class(*number)) {
        (_, Some(class)) => alike(view, operation.ty, class, operands),
        (LENGTH | DISTANCE, _) => to_one(view, operation.ty, operands),
        (LDEXP, _) => match operands {
            [value, exponent] => {
                alike(view, operation.ty, Float, &[*value])?;
                let (made, exponent) =
                    (view.numbers(operation.ty)?, view.numbers_of(*exponent)?.ok_or(WRONG)?);
                let fits = exponent.class == Int && made.is_some_and(|made| made.count == exponent.count);
                if fits { Ok(()) } else { Err(WRONG) }
            }
            _ => Err(ErrorKind::Length),
        },
        (REFRACT, _) => alike(view, operation.ty, Float, operands.get(..2).ok_or(ErrorKind::Length)?),
        (number, _) if OF_MATRIX.contains(&number) => of_matrix(view, operation.ty, number, operands),
        (number, _) if STORING.contains(&number) => {
            let [value, pointer] = *operands else { return Err(ErrorKind::Length) };
            let (_, contents) = view.pointer(pointer)?;
            parts(view, number == STORING[0], value, operation.ty, contents.ok_or(WRONG)?)
        }
        (number, _) if SPLITTING.contains(&number) => match (view.declared(operation.ty)?, operands) {
            ((op::TYPE_STRUCT, [one, other]), [value]) => {
                parts(view, number == SPLITTING[0], *value, *one, *other)
            }
            _ => Err(WRONG),
        },
        (number, _) => packed(view, operation.ty, number, operands),
    }
}

/// Checks the two parts of a float: both have the float's type, but the second may be an integer.
fn parts(view: &View<'_>, are_floats: bool, value: u32, one: u32, other: u32) -> Result<(), ErrorKind> {
    alike(view, one, Float, &[value])?;
    let (one, other) = (view.numbers(one)?.ok_or(WRONG)?, view.numbers(other)?.ok_or(WRONG)?);
    let fits = if are_floats { one == other } else { other.class == Int && other.count == one.count };
    if fits { Ok(()) } else { Err(WRONG) }
}

/// Checks the functions of a square matrix.
fn of_matrix(view: &View<'_>, ty: u32, number: u32, operands: &[u32]) -> Result<(), ErrorKind> {
    let matrix = view.type_of(*operands.first().ok_or(ErrorKind::Length)?)?;
    let (op::TYPE_MATRIX, [column, count]) = view.declared(matrix)? else { return Err(WRONG) };
    let column = view.numbers(*column)?.filter(|column| column.count == *count).ok_or(WRONG)?;
    let fits = match number == OF_MATRIX[0] {
        true => view.numbers(ty)? == Some(Numbers { count: 1, ..column }),
        false => view.are_alike(ty, matrix)?,
    };
    if fits { Ok(()) } else { Err(WRONG) }
}

/// Checks the operations that pack several numbers into one, or unpack them. Other operations pass.
fn packed(view: &View<'_>, ty: u32, number: u32, operands: &[u32]) -> Result<(), ErrorKind> {
    let floats = |count| Numbers { class: Float, bits: 32, count };
    let integers = |count| Numbers { class: Int, bits: 32, count };
    let double = Numbers { class: Float, bits: 64, count: 1 };
    let (result, operand) = match number {
        54 | 55 => (integers(1), floats(4)),
        56..=58 => (integers(1), floats(2)),
        59 => (double, integers(2)),
        60..=62 => (floats(2), integers(1)),
        63 | 64 => (floats(4), integers(1)),
        65 => (integers(2), double),
        _ => return Ok(()),
    };
    let found = view.numbers_of(*operands.first().ok_or(ErrorKind::Length)?)?;
    if view.numbers(ty)? == Some(result) && found == Some(operand) { Ok(()) } else { Err(WRONG) }
}

/// The class of the numbers of an operation whose operands are all as its result is.
fn class(number: u32) -> Option<Class> {
    Some(match number {
        1..=4 | 6 | 8..=32 | 37 | 40 | 43 | 46 | 48..=50 | 68..=71 | 79..=81 => Float,
        5 | 7 | 38 | 39 | 41 | 42 | 44 | 45 | 73..=75 => Int,
        _ => return None,
    })
}

/// Demands that result and operands are numbers of this class, of one width and as many components.
fn alike(view: &View<'_>, ty: u32, class: Class, operands: &[u32]) -> Result<(), ErrorKind> {
    let Some(made) = view.numbers(ty)? else { return long(view, ty, operands) };
    for value in operands {
        if view.numbers_of(*value)? != Some(made) {
            return Err(WRONG);
        }
    }
    if made.class == class { Ok(()) } else { Err(WRONG) }
}

/// Demands that all are of one type, which is a long vector.
fn long(view: &View<'_>, ty: u32, operands: &[u32]) -> Result<(), ErrorKind> {
    if view.declared(ty)?.0 != op::TYPE_COOPERATIVE_VECTOR {
        return Err(WRONG);
    }
    operands.iter().try_for_each(|value| view.agree(ty, view.type_of(*value)?, "operands and result"))
}

/// Demands that the operands are floats alike, and the result one of their components.
fn to_one(view: &View<'_>, ty: u32, operands: &[u32]) -> Result<(), ErrorKind> {
    let made = view.numbers(ty)?.filter(|made| made.class == Float && made.count == 1).ok_or(WRONG)?;
    let first = view.numbers_of(*operands.first().ok_or(ErrorKind::Length)?)?;
    let fits = first.map(|first| Numbers { count: 1, ..first }) == Some(made);
    let alike = operands.iter().map(|value| view.numbers_of(*value)).collect::<Result<Vec<_>, _>>()?;
    if fits && alike.iter().all(|found| *found == first) { Ok(()) } else { Err(WRONG) }
}
