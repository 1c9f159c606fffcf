//! Types of an instruction's operands against each other and against its result, for instructions that reach into composites, move values or compute
//! (SPIR-V 1.6, 3.52.8 to 3.52.15).
//!
//! Drivers build typed code of their own from a module without another check: a value of another size than its place, or a member that does not
//! exist, ends up in their tables. Types that are declared alike count as one type, because old compilers write such modules.

mod agreement;
mod glsl;
mod matrices;
mod numbers;
mod operation;
mod paths;
mod results;
mod view;

use super::layout::error::ErrorKind;
pub(super) use agreement::check_call;
pub(super) use operation::Operation;
pub(super) use results::Results;
pub(super) use view::View;

/// Checks the types of an operation. Operations that are not known here pass.
pub(super) fn check(operation: &Operation<'_>, view: &View<'_>) -> Result<(), ErrorKind> {
    paths::check(operation, view)?;
    agreement::check(operation, view)?;
    matrices::check(operation, view)?;
    glsl::check(operation, view)?;
    numbers::check(operation, view)
}
