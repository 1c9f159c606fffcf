//! Objects that are gone for the guest and not yet for the driver.

pub(crate) mod free_list;
pub(crate) mod freed;
pub(crate) mod given_up;
pub(crate) mod lent;
pub(crate) mod pool;
pub(crate) mod retired;
pub(crate) mod unfilled;

#[cfg(test)]
mod pool_tests;
