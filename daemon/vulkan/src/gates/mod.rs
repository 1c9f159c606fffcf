//! The gates before which submissions wait for the scheduler.

pub mod gate;
pub mod lane;
