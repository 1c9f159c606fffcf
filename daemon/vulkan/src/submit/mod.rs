//! Queues: submissions, their ends, and waits for them.

pub(crate) mod again;
pub(crate) mod batches;
pub(crate) mod commands;
pub(crate) mod deferred_markers;
pub(crate) mod held_queue;
pub(crate) mod lost;
mod prepare;
pub(crate) mod queue;
pub(crate) mod restore;
pub(crate) mod scheduled;
pub(crate) mod state_query;
pub(crate) mod submission;
pub(crate) mod sync;
pub(crate) mod watch;
