//! Functions that instructions of cooperative matrices call for each element (SPV_NV_cooperative_matrix2). Like the function of a call, such a
//! function may be defined later.

use super::layout::opcode as op;

/// The ids that such an instruction uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Callback<'u> {
    /// The ids of values, before and behind the function.
    pub values: [&'u [u32]; 2],
    /// The id of the function, or several ids, the last of which may be one.
    pub functions: &'u [u32],
    /// The number of arguments that the function gets.
    pub arguments: u32,
    /// True if one of the ids is certainly a function. Otherwise the instruction may have other ids in the function's place.
    pub is_sure: bool,
}

impl<'u> Callback<'u> {
    /// Returns the callback of an instruction, from the ids that it uses; none if it calls nothing.
    pub(super) fn of(opcode: u16, used: &'u [u32]) -> Option<Self> {
        let part = |range: std::ops::Range<usize>| used.get(range).unwrap_or(&[]);
        let more = used.len();
        match opcode {
            // Matrix, function: two elements become one.
            op::COOPERATIVE_MATRIX_REDUCE => {
                Some(Self { values: [part(0..1), &[]], functions: part(1..2), arguments: 2, is_sure: true })
            }
            // Matrix, function, operands: the element's row and column, the element and the operands.
            op::COOPERATIVE_MATRIX_PER_ELEMENT => Some(Self {
                values: [part(0..1), part(2..more)],
                functions: part(1..2),
                arguments: more as u32 + 1,
                is_sure: true,
            }),
            // Pointer, object, layout, then operands by the masks: a function that decodes is the last. It gets a pointer and two coordinates.
            op::COOPERATIVE_MATRIX_LOAD_TENSOR => Some(Self {
                values: [part(0..3), &[]],
                functions: part(3..more),
                arguments: 3,
                is_sure: false,
            }),
            _ => None,
        }
    }
}
