//! Starting child processes that hold nothing but what they are given.
//!
//! Knows nothing of contexts or messages. The only place that runs code between fork and exec.

mod spawn;
mod sys;

pub use spawn::{Exe, spawn};
pub use sys::inherited;
