//! Queues: submissions, their ends, and waits for them.

pub mod batches;
pub mod commands;
pub mod deferred_markers;
pub mod held_queue;
pub mod lost;
mod prepare;
pub mod queue;
pub mod scheduled;
pub mod state_query;
pub mod submission;
pub mod sync;
pub mod watch;
