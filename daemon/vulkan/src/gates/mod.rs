//! The gates before which submissions wait for the scheduler.

pub(crate) mod gate;
pub(crate) mod lane;
