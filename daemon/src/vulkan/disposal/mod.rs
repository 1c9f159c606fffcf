//! Objects that are gone for the guest and not yet for the driver.

pub mod lent;
pub mod pool;
pub mod retired;
pub mod shelf;

#[cfg(test)]
mod pool_tests;
