//! One command on its way, and the context that it is executed for.

pub(crate) mod call;
pub(crate) mod context;
pub(crate) mod failures;
pub(crate) mod pending;
