//! Queues: submissions, their ends, and waits for them.

mod asks;
pub mod batches;
pub mod commands;
pub mod line;
pub mod lost;
mod prepare;
pub mod question;
pub mod queue;
pub mod scheduled;
pub mod submission;
pub mod sync;
pub mod unmarked;
pub mod watch;
