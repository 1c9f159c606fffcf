//! One operation, which an instruction or `OpSpecConstantOp` has.

use crate::spirv::layout::error::ErrorKind;
use crate::spirv::layout::opcode as op;
use crate::spirv::layout::words::Instruction;

/// An operation, whether an instruction or `OpSpecConstantOp` has it.
#[derive(Clone, Copy, Debug)]
pub(in crate::spirv) struct Operation<'o> {
    /// The opcode of the operation.
    pub opcode: u16,
    /// The type of its result; 0 if it has none.
    pub ty: u32,
    /// The words behind type and result.
    pub words: &'o [u32],
    /// The ids among them, in their order.
    pub used: &'o [u32],
}

impl<'o> Operation<'o> {
    /// The operation of `instruction`, whose result is of type `ty` if it has one, and which uses these ids.
    pub(in crate::spirv) fn of(instruction: &Instruction<'o>, ty: Option<u32>, used: &'o [u32]) -> Self {
        let all = instruction.operands;
        let (opcode, words) = match (ty, instruction.opcode, all) {
            (Some(_), op::SPEC_CONSTANT_OP, [_, _, opcode, words @ ..]) => (*opcode as u16, words),
            (Some(_), opcode, [_, _, words @ ..]) => (opcode, words),
            (_, opcode, words) => (opcode, words),
        };
        Self { opcode, ty: ty.unwrap_or(0), words, used }
    }

    /// The id of this index among those that are used.
    pub(super) fn id(&self, index: usize) -> Result<u32, ErrorKind> {
        self.used.get(index).copied().ok_or(ErrorKind::Length)
    }
}
