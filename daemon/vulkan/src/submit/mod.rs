//! Queues: submissions, their ends, and waits for them.
//!
//! The way of a submission:
//!
//! | step | function | thread |
//! | --- | --- | --- |
//! | the command is decoded and called | [`commands::queue_submit`] | a ring's |
//! | its batches are lowered, and put into groups that begin and end together | `prepare::prepare_submit` | the same |
//! | it passes the gate, or is put into the held queue | `queue::Queue::submit_command` | the same |
//! | its submissions get numbers and markers | `order::queue_order::QueueOrder::begin` | the same |
//! | if it was held: the gate lets it pass | `admission::Admission::advance` | the gate's |
//! | the host's `vkQueueSubmit` is called | `order::queue_order::QueueOrder::dispatch` | the ring's, or the gate's |
//! | its end is noticed: journal and gate know of it, its marker is free | `order::queue_order::QueueOrder::settle` | any that looks |
//!
//! `order::submission` lists the stages of a submission and the threads that move it, [`crate::context::ranked`] the order of locks.

mod admission;
pub(crate) mod again;
pub(crate) mod commands;
mod fences;
mod held_queue;
pub(crate) mod lost;
mod order;
mod prepare;
pub(crate) mod queue;
pub(crate) mod restore;
pub(crate) mod state_query;
pub(crate) mod sync;
mod threads;
mod watcher;
