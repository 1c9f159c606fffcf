//! The order of a queue: its submissions that have not ended, and how their stages change. Other modules decide which thread does this, and when.

pub(crate) mod batches;
mod deferred_markers;
pub(crate) mod host;
mod meter;
mod pace;
pub(crate) mod queue_order;
pub(crate) mod submission;
pub(crate) mod submissions;
pub(crate) mod waits;
