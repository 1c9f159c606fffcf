//! Objects that are gone for the guest and not yet for the driver.

pub mod free_list;
pub mod lent;
pub mod pool;
pub mod retired;

#[cfg(test)]
mod pool_tests;
