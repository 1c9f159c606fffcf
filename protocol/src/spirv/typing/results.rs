//! Types that a function declares for others: parameters and results against its type, returned values, and phis, whose values may come
//! later in the function.

use super::operation::Operation;
use super::view::View;
use crate::spirv::layout::error::ErrorKind;
use crate::spirv::layout::opcode as op;

/// The function that is read.
#[derive(Debug, Default)]
pub(in crate::spirv) struct Results {
    /// The type of the function's result.
    returned: u32,
    /// The types of the parameters that are to come, the next one last.
    parameters: Vec<u32>,
    /// Values, and the type that each must turn out to have.
    phis: Vec<(u32, u32)>,
}

impl Results {
    /// Follows an instruction of a function.
    pub(in crate::spirv) fn follow(
        &mut self,
        operation: &Operation<'_>,
        view: &View<'_>,
    ) -> Result<(), ErrorKind> {
        let Operation { opcode, ty, used, .. } = *operation;
        match opcode {
            op::FUNCTION => {
                let (_, types) = view.declared(operation.id(0)?)?;
                let (returned, parameters) = types.split_first().ok_or(ErrorKind::Length)?;
                self.returned = *returned;
                self.parameters = parameters.iter().rev().copied().collect();
                view.agree(ty, *returned, "a function and its result")
            }
            op::FUNCTION_PARAMETER => {
                let declared = self.parameters.pop().ok_or(ErrorKind::Mismatch("parameters"))?;
                view.agree(ty, declared, "a parameter and its function")
            }
            op::RETURN_VALUE => {
                view.agree(view.type_of(operation.id(0)?)?, self.returned, "a function and its result")
            }
            op::RETURN if view.declared(self.returned)?.0 != op::TYPE_VOID => {
                Err(ErrorKind::Missing("returned value"))
            }
            op::PHI => {
                self.phis.extend(used.chunks(2).filter_map(|pair| Some((*pair.first()?, ty))));
                Ok(())
            }
            op::FUNCTION_END => {
                let mut phis = self.phis.drain(..);
                phis.try_for_each(|(value, ty)| view.agree(view.type_of(value)?, ty, "a phi and its values"))
            }
            _ => Ok(()),
        }
    }
}
