//! One command on its way, and the context that it is executed for.

pub mod call;
pub mod context;
pub mod failures;
pub mod pending;
