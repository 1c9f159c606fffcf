//! Where submissions wait for the scheduler.

pub mod gate;
pub mod lane;
