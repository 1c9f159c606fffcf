//! The order of a queue: what was submitted to it and has not ended, and how its stages change. Which thread comes when is not decided here.

pub(crate) mod batches;
mod deferred_markers;
pub(crate) mod host;
mod meter;
mod pace;
pub(crate) mod queue_order;
pub(crate) mod submission;
pub(crate) mod submissions;
pub(crate) mod waits;
