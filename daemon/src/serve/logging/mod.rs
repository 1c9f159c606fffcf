//! This module writes to the daemon's log: lines that workers print, and events, a few lines of each kind.

pub(super) mod aftermath;
pub(super) mod event;
pub(super) mod event_log;
pub(super) mod fault;
mod limiter;
pub(super) mod output;
