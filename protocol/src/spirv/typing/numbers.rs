//! Operations on scalars and vectors: which numbers they take and make (SPIR-V 1.6, 3.52.11 and 3.52.13 to 3.52.16).

use super::operation::Operation;
use super::view::{Class, Numbers, View};
use crate::spirv::layout::error::ErrorKind;
use Class::{Bool, Float, Int};
use std::ops::RangeInclusive;

/// Operations, the class of their results, the class of their operands, and whether these are as wide as the result.
type Rule = (RangeInclusive<u16>, Class, Class, bool);

/// The rules of operations whose operands all have as many components as the result, and one width.
const RULES: &[Rule] = &[
    // Conversions.
    (109..=110, Int, Float, false),
    (111..=112, Float, Int, false),
    (113..=114, Int, Int, false),
    (115..=115, Float, Float, false),
    (116..=116, Float, Float, true),
    // Arithmetic.
    (126..=126, Int, Int, true),
    (127..=127, Float, Float, true),
    (128..=128, Int, Int, true),
    (129..=129, Float, Float, true),
    (130..=130, Int, Int, true),
    (131..=131, Float, Float, true),
    (132..=132, Int, Int, true),
    (133..=133, Float, Float, true),
    (134..=135, Int, Int, true),
    (136..=136, Float, Float, true),
    (137..=139, Int, Int, true),
    (140..=141, Float, Float, true),
    // Comparisons and logic.
    (156..=157, Bool, Float, false),
    (164..=168, Bool, Bool, true),
    (170..=179, Bool, Int, false),
    (180..=191, Bool, Float, false),
    // Bits.
    (197..=200, Int, Int, true),
    (204..=204, Int, Int, true),
    (205..=205, Int, Int, false),
    // Derivatives.
    (207..=215, Float, Float, true),
];

/// `OpAny` and `OpAll`.
const OF_ALL: RangeInclusive<u16> = 154..=155;
/// Sums and products that yield two numbers.
const EXTENDED: RangeInclusive<u16> = 149..=152;
/// Shifts.
const SHIFTS: RangeInclusive<u16> = 194..=196;
/// `OpBitFieldInsert` has two operands like its result, the two that extract have one; offset and count follow.
const BIT_FIELDS: RangeInclusive<u16> = 201..=203;

/// The error for operands that do not fit.
pub(super) const WRONG: ErrorKind = ErrorKind::Mismatch("operands and result");

/// Checks an operation on numbers.
pub(super) fn check(operation: &Operation<'_>, view: &View<'_>) -> Result<(), ErrorKind> {
    let opcode = operation.opcode;
    if let Some((_, result, operands, is_as_wide)) =
        RULES.iter().find(|(opcodes, ..)| opcodes.contains(&opcode))
    {
        return alike(operation, view, (*result, *operands), *is_as_wide);
    }
    match opcode {
        _ if SHIFTS.contains(&opcode) => bits(operation, view, 1, false),
        _ if BIT_FIELDS.contains(&opcode) => {
            bits(operation, view, operation.used.len().saturating_sub(2), true)
        }
        _ if OF_ALL.contains(&opcode) => of_all(operation, view),
        _ if EXTENDED.contains(&opcode) => extended(operation, view),
        _ => Ok(()),
    }
}

/// Demands numbers of these classes, those of the operands alike.
fn alike(
    operation: &Operation<'_>,
    view: &View<'_>,
    (result, operands): (Class, Class),
    is_as_wide: bool,
) -> Result<(), ErrorKind> {
    let Some(made) = view.numbers(operation.ty)? else { return matrices(operation, view, is_as_wide) };
    let mut width = if is_as_wide { Some(made.bits) } else { None };
    for value in operation.used {
        let taken = view.numbers_of(*value)?.ok_or(WRONG)?;
        if taken.class != operands
            || taken.count != made.count
            || width.is_some_and(|bits| bits != taken.bits)
        {
            return Err(WRONG);
        }
        width = Some(taken.bits);
    }
    if made.class == result { Ok(()) } else { Err(WRONG) }
}

/// Demands that the operands of an operation are of the same kind as its result: matrices that subgroups hold, or long vectors. For results other
/// than scalars and vectors.
fn matrices(operation: &Operation<'_>, view: &View<'_>, is_as_wide: bool) -> Result<(), ErrorKind> {
    use crate::spirv::layout::opcode as op;
    let (opcode, _) = view.declared(operation.ty)?;
    if !matches!(
        opcode,
        op::TYPE_COOPERATIVE_MATRIX | op::TYPE_COOPERATIVE_MATRIX_NV | op::TYPE_COOPERATIVE_VECTOR
    ) {
        return Err(WRONG);
    }
    operation.used.iter().try_for_each(|value| {
        let ty = view.type_of(*value)?;
        let fits =
            if is_as_wide { view.are_alike(ty, operation.ty)? } else { view.declared(ty)?.0 == opcode };
        if fits { Ok(()) } else { Err(WRONG) }
    })
}

/// Checks operations on bits: the first `first` operands are like the result, and each other operand is one integer, or one for each component.
fn bits(operation: &Operation<'_>, view: &View<'_>, first: usize, are_scalar: bool) -> Result<(), ErrorKind> {
    let Some(made) = view.numbers(operation.ty)?.filter(|made| made.class == Int) else { return Err(WRONG) };
    for (index, value) in operation.used.iter().enumerate() {
        let taken = view.numbers_of(*value)?.ok_or(WRONG)?;
        let expected = match index < first {
            true => made,
            false => Numbers { bits: taken.bits, count: if are_scalar { 1 } else { made.count }, ..made },
        };
        if taken != expected {
            return Err(WRONG);
        }
    }
    Ok(())
}

fn of_all(operation: &Operation<'_>, view: &View<'_>) -> Result<(), ErrorKind> {
    match (view.numbers(operation.ty)?, view.numbers_of(operation.id(0)?)?) {
        (Some(Numbers { class: Bool, count: 1, .. }), Some(Numbers { class: Bool, count: 2.., .. })) => {
            Ok(())
        }
        _ => Err(WRONG),
    }
}

/// Checks operations whose result is a structure of two numbers like the operands.
fn extended(operation: &Operation<'_>, view: &View<'_>) -> Result<(), ErrorKind> {
    let (_, members) = view.declared(operation.ty)?;
    let &[low, high] = members else { return Err(WRONG) };
    let (low, high) = (view.numbers(low)?, view.numbers(high)?);
    let fits = |value: &u32| Ok(view.numbers_of(*value)? == low);
    let all = operation.used.iter().map(fits).collect::<Result<Vec<_>, _>>()?;
    let is_integer = low.is_some_and(|low| low.class == Int);
    if is_integer && low == high && all.into_iter().all(|fits| fits) { Ok(()) } else { Err(WRONG) }
}
