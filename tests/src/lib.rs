//! The test harness: Debian packages as test material, virtual machines, and the runs that use them.

pub mod acceptance;
pub mod packages;
pub mod prerequisites;
